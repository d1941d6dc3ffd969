"""Rewrites `Program` -> `Program`: algebra that dependences alone do not know, one rule a file."""
