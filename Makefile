# Two commands: `make demo` and `make test`. Each sets up .venv first if that has not been done.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/polygen-is-set-up
# Tests in two processes: each begins with half of the files, so that what the tests of a file share
# is made once, and takes of the other's when it has no more.
PYTEST := $(BIN)/pytest -n 2 --dist worksteal
# Tests start hundreds of processes, and each would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

# The kernel that the demo looks at.
KERNEL := "gelu(x @ w.T + b)" "x:bf16[M,K]" "w:bf16[N,K]" "b:bf16[N]" \
          --arch sm_90a --size M=4096 N=4096 K=1024
SHOW := $(BIN)/polygen show $(KERNEL) --stage

.PHONY: setup demo test slow-test lint sizes gpu-test bench bench-host docs html gallery goldens clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[cuda13,dev]'
	touch $@

demo: setup
	@echo '== The program: what gelu(x @ w.T + b) means, statement by statement, and how it is fused'
	@$(SHOW) program
	@echo
	@echo '== The schedule tree: the statements tiled, then what every place runs, with what synchronises it'
	@$(SHOW) tree | sed -E 's/^(.{159}).+/\1…/'
	@echo
	@echo '== The loops that come out of it'
	@$(SHOW) ast
	@echo
	@echo '== The barriers, each with the dependences it enforces'
	@$(SHOW) plan | sed -n '/^barriers:/,/^resources:/{/^resources:/!p;}'
	@echo
	@echo '== What bounds it, by the cost model'
	@$(SHOW) cost
	@echo
	@echo '== Checked without a GPU: proofs for every size, then the PTX run on NumPy'
	@$(BIN)/polygen check $(KERNEL)
	@echo
	@echo '== The code'
	@$(BIN)/polygen generate $(KERNEL) --name up -o kernels_out

test: setup lint sizes
	$(PYTEST) -m "not gpu and not slow"

slow-test: setup
	$(PYTEST) -m "slow and not gpu"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

sizes:
	@find polygen -name '*.py' -exec wc -l {} + | awk ' \
	  $$2 != "total" && $$1 > 400 { print $$2 ": " $$1 " lines, more than 400" } \
	  $$2 != "total" && $$1 > 600 { bad = 1 } \
	  END { if (bad) { print "a module has more than 600 lines"; exit 1 } }'

gpu-test: setup
	$(BIN)/pytest -m gpu tests/gpu

# OUT: the record, which is continued; BENCH: more options, as in BENCH="--suite llm --budget 300".
OUT ?= bench.json
bench: setup
	$(BIN)/polygen bench --out $(OUT) $(BENCH)

# How fast polygen itself is here, beside the committed record; it informs and fails nothing.
# HOST: more options, as in HOST="--rows generate --fail-above 1.3", or HOST="--out $(HOST_RECORD)".
HOST_RECORD := docs/results/host.json
bench-host: setup
	$(BIN)/python -m polygen.bench.host --baseline $(HOST_RECORD) --out bench-host.json $(HOST)

# docs/performance.md, its plots, the README's table and the like, from the records in docs/results.
docs: setup
	$(BIN)/python -c 'import matplotlib' 2>/dev/null || $(BIN)/pip install --quiet -e '.[bench]'
	$(BIN)/python docs/make_tables.py
	$(BIN)/python docs/generation_time.py
	$(BIN)/python docs/make_gallery.py

# The site with its reference, in build/html.
html: setup
	$(BIN)/python -c 'import sphinx, myst_parser, furo' 2>/dev/null || $(BIN)/pip install --quiet -e '.[docs]'
	$(BIN)/python -m sphinx -q -W --keep-going -c docs/site . build/html
	@echo build/html/index.html

# docs/gallery.md and its pictures, and the picture of docs/page.md where there is a browser.
gallery: setup
	$(BIN)/python docs/make_gallery.py --pictures
	-$(BIN)/python docs/page_picture.py

goldens: setup
	$(BIN)/pytest tests/golden --update-goldens

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find kernels_out -type f ! -name README.md -delete
