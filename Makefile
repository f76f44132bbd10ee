# Every target sets up what it needs in .venv; a second call finds it there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
USABLE := $(VENV)/.usable

PEERS := .peers
DATA ?=  # folder with labour_mroz.csv.gz and splits/, for the benchmarks that need it
VERSUS := $(if $(strip $(DATA)),--data $(DATA)) --environments $(PEERS)

.PHONY: demo test test-slow lint bench bench-gpu bench-peers peers peers-tables docs pictures clean

# $(1): the extras of pyproject.toml.
define install
	@echo "Setting up $(VENV): a minute or two."
	@$(PYTHON) -m venv $(VENV)
	@(while sleep 8; do echo "Installing ..."; done) & timer=$$!; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(1)]'; \
	status=$$?; kill $$timer; exit $$status
	@touch $@
endef

$(READY): pyproject.toml constraints.txt
	$(call install,dev)

$(USABLE): pyproject.toml constraints.txt
	$(call install,all)

demo: $(if $(wildcard $(READY)),$(READY),$(USABLE))
	$(BIN)/bayeslearn demo

# Compiling is most of the time of most tests, and their problems are too small to repay optimising;
# the long ones are a run of their own, in which it is repaid.
test: lint
	XLA_FLAGS=--xla_backend_optimization_level=0 $(BIN)/python -m pytest -n auto --dist loadgroup --slow none
	$(BIN)/python -m pytest -n auto --dist loadgroup --slow part -m slow

test-slow: $(READY)
	XLA_FLAGS=--xla_backend_optimization_level=0 $(BIN)/python -m pytest -n auto --dist loadgroup --slow none
	$(BIN)/python -m pytest -n auto --dist loadgroup --slow all -m slow

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python benchmarks/hmc_gradients.py
	$(BIN)/python benchmarks/import_time.py
	$(BIN)/python benchmarks/steps.py --repeats 5
	$(BIN)/python benchmarks/versus.py run --short $(VERSUS)

bench-peers: peers
	$(BIN)/python benchmarks/versus.py run $(VERSUS)
	$(BIN)/python benchmarks/growth.py run --plot docs/growth.png

bench-gpu: $(READY)
	$(BIN)/python benchmarks/steps.py --device gpu
	$(BIN)/python benchmarks/growth.py run

# torchvision, which some of them ask for, is built for another PyTorch and breaks the import of laplace.
peers: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r benchmarks/peers/jax.txt
	$(PYTHON) -m venv $(PEERS)/torch
	$(PEERS)/torch/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers/torch.txt
	$(PEERS)/torch/bin/python -m pip uninstall --quiet --yes torchvision

peers-tables: $(READY)
	$(PYTHON) -m venv $(PEERS)/tables
	$(PEERS)/tables/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers/tables.txt
	$(PYTHON) -m venv $(PEERS)/bde
	$(PEERS)/bde/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers/bde.txt

docs: $(READY)
	$(BIN)/mkdocs build --strict

# Pictures of the start page, of the algorithms' pages and of the README; on a quiet machine, for the seconds.
pictures: $(READY)
	$(BIN)/python docs/gallery.py
	$(BIN)/python docs/priors_picture.py
	$(BIN)/python docs/report_picture.py

clean:
	rm -rf $(VENV) $(PEERS) site demo
