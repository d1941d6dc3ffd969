"""`Program` to `LoopAst`: polyhedra, fusion, schedule trees, legality, loops; isl stays inside."""
