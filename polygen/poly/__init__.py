"""`Program` to `LoopAst`: polyhedra, fusion, schedule trees, legality, loops. No isl object leaves this package."""
