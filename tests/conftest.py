"""Common ground of the tests: precision, keys, and which slow tests run."""

from __future__ import annotations

import atexit
import os
import resource
import shutil
import subprocess
import tempfile

# What one worker has compiled, the other need not; for this run only.
if "PYTEST_XDIST_WORKER" not in os.environ and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    compiled = tempfile.mkdtemp(prefix="bayeslearn-tests-")
    atexit.register(shutil.rmtree, compiled, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = compiled
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"

import jax
import pytest

SLOW_PARTS = 100
TURNS = 40
TURN_FILES = {
    "test_adapters.py",
    "test_bayesian_part.py",
    "test_checkpoints.py",
    "test_estimators.py",
    "test_likelihoods.py",
    "test_mc_dropout.py",
    "test_metrics.py",
    "test_networks.py",
    "test_numerics.py",
    "test_per_example.py",
    "test_plots.py",
    "test_priors.py",
    "test_properties.py",
    "test_reliability.py",
    "test_sequential.py",
    "test_storage.py",
}
TURN_TESTS = {
    "test_code_runs_and_prints_what_the_page_says",
    "test_fit_repeats_bit_for_bit_at_any_chunk_size_without_compiling_again",
    "test_the_users_configuration_and_the_networks_dtype_are_untouched",
}
EVERY_TIME = {"test_scikit_learn_checks_of_map"}
EVERY_SECOND_TIME = {"test_scikit_learn_checks_of_vogn"}  # each of the two, in turns
KEPT_KILOBYTES = 3_000_000


def pytest_addoption(parser):
    parser.addoption(
        "--slow",
        choices=("none", "rotate", "all"),
        default="rotate",
        help="slow tests and those that take turns: a part of both (rotate, the default), a part of"
        " the latter only (none), or all",
    )


def _part() -> int:
    """Which part of the tests is due: BAYESLEARN_SLOW_PART, else the number of commits."""
    if "BAYESLEARN_SLOW_PART" in os.environ:
        return int(os.environ["BAYESLEARN_SLOW_PART"]) % SLOW_PARTS
    counted = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"], capture_output=True, text=True, check=False
    )
    return int(counted.stdout.strip() or 0) % SLOW_PARTS


def pytest_report_header(config):
    if config.getoption("--slow") == "rotate":
        return f"slow tests: part {_part()} of {SLOW_PARTS} (BAYESLEARN_SLOW_PART={_part()})"
    return f"slow tests: {config.getoption('--slow')}"


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config, items):
    _group_for_workers(items)
    wanted = config.getoption("--slow")
    if wanted == "all":
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    turns = [i for i in items if not i.get_closest_marker("slow") and _takes_turns(i)]
    part = _part()
    chosen = {id(t) for i, t in enumerate(slow) if wanted == "rotate" and i % SLOW_PARTS == part}
    chosen |= {id(t) for i, t in enumerate(turns) if i % TURNS == part % TURNS}
    halves = [t for t in turns if t.originalname in EVERY_SECOND_TIME]
    chosen |= {id(t) for i, t in enumerate(halves) if i % 2 == part % 2}
    left_out = [item for item in (*slow, *turns) if id(item) not in chosen]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = {id(item) for item in left_out}
        items[:] = [item for item in items if id(item) not in gone]


def _takes_turns(item) -> bool:
    """Tests of which a part runs each time: they compile many models, a few seconds each."""
    name = getattr(item, "originalname", item.name)
    return (item.path.name in TURN_FILES or name in TURN_TESTS) and name not in EVERY_TIME


def _group_for_workers(items):
    """Tests that share compiled functions or fixtures run in one worker: a file (or a class of
    estimators), or, where every test walks the algorithms, an algorithm."""
    for item in items:
        name = getattr(item, "callspec", None) and item.callspec.params.get("name")
        is_walk = item.path.name == "test_contract.py" and name
        kind = getattr(item, "callspec", None) and item.callspec.params.get("cls")
        group = f"algorithm {name}" if is_walk else f"{item.path} {kind and kind.__name__}"
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(autouse=True, scope="module")
def memory():
    """Compiled functions are kept for ever: let go of them between files once they are many."""
    yield
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > KEPT_KILOBYTES:
        jax.clear_caches()


@pytest.fixture
def x64():
    """64-bit types allowed, as inside `fit`."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def key():
    """A fixed key; BAYESLEARN_SEED changes it."""
    return jax.random.key(int(os.environ.get("BAYESLEARN_SEED", "0")))


@pytest.fixture
def compiles():
    """`with compiles() as seen:` lists what XLA compiled inside the block."""
    import contextlib

    from jax import monitoring

    @contextlib.contextmanager
    def watch():
        seen = []

        def listen(event, duration, **details):
            if event == "/jax/core/compile/backend_compile_duration":
                seen.append(details.get("fun_name", "?"))

        monitoring.register_event_duration_secs_listener(listen)
        try:
            yield seen
        finally:
            monitoring.unregister_event_duration_listener(listen)

    return watch
