"""Proofs of the texts of leaves: what they do, run for all threads, is what statements say."""
