"""A run that is killed goes on to the same bits; what is torn, foreign or other is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import problems
import pytest
from interruption import (
    Killed,
    assert_same,
    checkpoint_names,
    kill_after,
    killed_and_resumed,
)

import bayeslearn as bl
from bayeslearn.errors import ArgumentError, CheckpointWarning, DataError, Interrupted, StorageError
from bayeslearn.inference import run_state
from bayeslearn.inference.chains import ChainPlacement
from bayeslearn.storage import checkpoints, codec, folders

OPTIONS = {"seed": 0, "num_steps": 60, "options": bl.FitOptions(eval_every=20, chunk_size=10)}
STREAM = OPTIONS | {"options": bl.FitOptions(num_data=60, eval_every=20, chunk_size=10)}


@pytest.fixture(scope="module")
def problem():
    return problems.regression()


@pytest.fixture
def data(problem):
    return problem.x, problem.y


@pytest.fixture(scope="module")
def whole(problem):
    return bl.fit(problem.model, "map", (problem.x, problem.y), **OPTIONS)


def fit(problem, **options):
    return bl.fit(problem.model, "map", (problem.x, problem.y), **{**OPTIONS, **options})


def begun(run, problem, monkeypatch, occasions=5, every=1, keep=2, **options):
    """A run killed after some occasions, with checkpoints at all of them by default."""
    kill_after(occasions, monkeypatch)
    with pytest.raises(Killed):
        fit(problem, checkpoint=bl.Checkpoint(run, every=every, keep=keep), **options)
    monkeypatch.undo()
    return run


# The same bits


def test_checkpoints_change_nothing(tmp_path, problem, whole):
    assert_same(whole, fit(problem, checkpoint=bl.Checkpoint(tmp_path / "run", every=10)))
    assert len(checkpoint_names(tmp_path / "run")) == 2
    assert not [name for name in os.listdir(tmp_path / "run") if name.startswith(".")]


@pytest.mark.parametrize("occasions", [1, 2, 3, 6])
def test_a_run_killed_anywhere_ends_the_same(
    tmp_path, problem, data, whole, monkeypatch, occasions
):
    """At its start, in the middle of a round, and between rounds."""
    begun(tmp_path / "run", problem, monkeypatch, occasions, every=10)
    assert_same(whole, bl.resume(tmp_path / "run", data))
    assert_same(whole, bl.resume(tmp_path / "run", data))  # of a run that has ended


def test_a_run_may_be_killed_many_times(tmp_path, problem, data, whole, monkeypatch):
    run = begun(tmp_path / "run", problem, monkeypatch, 2)
    for _ in range(3):
        kill_after(7, monkeypatch)
        with pytest.raises(Killed):
            bl.resume(run, data)
        monkeypatch.undo()
        assert len(checkpoint_names(run)) <= 2
    assert_same(whole, bl.resume(run, data))
    assert len(checkpoint_names(run)) == 2


def test_chains_are_killed_in_warm_up_and_after(tmp_path, problem, data, monkeypatch):
    algorithm = bl.HMC(num_warmup=400, num_samples=500, max_leapfrog=4)
    options = {"seed": 0, "num_chains": 2}
    kills = [("main/warm start", 3), ("main", 3), ("main", 8)]
    whole, again = killed_and_resumed(
        tmp_path / "run", monkeypatch, kills, problem.model, algorithm, data, every=100, **options
    )
    assert_same(whole, again)
    # Each draw was written once: the parts of the last checkpoint hold all of them.
    last = tmp_path / "run" / checkpoint_names(tmp_path / "run")[-1] / "manifest.json"
    parts = [
        folders.read_folder(tmp_path / "run" / name)[0]
        for name, _ in json.loads(last.read_text())["description"]["parts"]
    ]
    assert len(parts) > 3
    assert sum(part["draw of leaf 0"].shape[1] for part in parts if "draw of leaf 0" in part) == 500


def test_chains_in_one_batch(tmp_path, problem, data, monkeypatch):
    """As on a single accelerator."""
    original = ChainPlacement.__init__

    def batched(self, *arguments, **options):
        original(self, *arguments, **options)
        self.is_batched, self.num_groups = True, 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChainPlacement, "__init__", batched)
        algorithm = bl.MetropolisHastings(num_warmup=200, num_samples=200, thin=1)
        whole, again = killed_and_resumed(
            tmp_path / "run",
            monkeypatch,
            [("main", 3), ("main", 4)],
            problem.model,
            algorithm,
            data,
            every=50,
            seed=0,
            num_chains=3,
        )
    assert_same(whole, again)


def test_minibatches_and_a_learned_prior(tmp_path, monkeypatch):
    x, y = problems.wiggle(50)
    model = bl.Model(bl.networks.MLP([3]), bl.likelihoods.Gaussian(), bl.priors.Normal(learn=True))
    options = {"seed": 0, "num_steps": 500, "batch_size": 8}
    kills = [("main/warm start", 3), ("main", 1), ("main", 10)]
    whole, again = killed_and_resumed(
        tmp_path / "run", monkeypatch, kills, model, "vogn", (x, y), every=100, **options
    )
    assert_same(whole, again)


def test_points_trained_along(tmp_path, monkeypatch):
    """Killed while all leaves are trained, in the warm start, and while points move with q."""
    model = bl.Model(
        bl.networks.MLP([3]), bl.likelihoods.Gaussian(), bayesian="layers.1.*", frozen="joint"
    )
    kills = [("main/frozen leaves", 3), ("main/warm start", 2), ("main", 10)]
    options = {"seed": 0, "num_steps": 500}
    whole, again = killed_and_resumed(
        tmp_path / "run",
        monkeypatch,
        kills,
        model,
        "bayes-by-backprop",
        problems.wiggle(30),
        every=100,
        **options,
    )
    assert_same(whole, again)
    frozen = [jax.tree.leaves(p.target.frozen) for p in (whole, again)]
    for a, b in zip(*frozen, strict=True):
        np.testing.assert_array_equal(a, b)


def test_batches_from_an_iterable(tmp_path, problem, monkeypatch):
    parts = [(problem.x[i::4], problem.y[i::4]) for i in range(4)]
    whole, again = killed_and_resumed(
        tmp_path / "run",
        monkeypatch,
        [("main", 3), ("main", 3)],
        problem.model,
        "map",
        parts,
        **STREAM,
    )
    assert_same(whole, again)


# Signals


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGTERM, Interrupted), (signal.SIGINT, KeyboardInterrupt)]
)
def test_a_signal_leaves_a_checkpoint(tmp_path, problem, data, number, error):
    run = tmp_path / "run"
    before = signal.getsignal(number)

    def stop_at_20(event):
        if event.step == 20:
            os.kill(os.getpid(), number)

    whole = fit(problem, callback=lambda event: None)
    with pytest.raises(error, match=r"bl\.resume") as caught:
        fit(problem, checkpoint=bl.Checkpoint(run, every="1h"), callback=stop_at_20)
    assert signal.getsignal(number) is before
    if error is Interrupted:
        assert caught.value.code == 143
        assert not isinstance(caught.value, Exception)
    assert len(checkpoint_names(run)) == 1
    assert_same(whole, bl.resume(run, data, callback=False))


def test_other_threads_do_not_listen(tmp_path, problem, whole):
    found = []
    thread = threading.Thread(
        target=lambda: found.append(
            fit(problem, checkpoint=bl.Checkpoint(tmp_path / "run", every=20))
        )
    )
    thread.start()
    thread.join()
    assert_same(whole, found[0])


# Torn, foreign, full


def test_a_torn_checkpoint_gives_way_to_the_one_before(tmp_path, problem, data, whole, monkeypatch):
    run = begun(tmp_path / "run", problem, monkeypatch)
    first, last = checkpoint_names(run)
    arrays = run / last / "arrays.safetensors"
    arrays.write_bytes(arrays.read_bytes()[:-1])
    with pytest.warns(CheckpointWarning, match=rf"{last} cannot.*{int(first[-6:])} in .* is used"):
        again = bl.resume(run, data)
    assert_same(whole, again)


def test_a_lost_part_is_a_torn_checkpoint(tmp_path, problem, data, whole, monkeypatch):
    run = begun(tmp_path / "run", problem, monkeypatch, occasions=5, every=10)
    shutil.rmtree(run / checkpoint_names(run, "part")[-1])
    with pytest.warns(CheckpointWarning, match="is used instead"):
        assert_same(whole, bl.resume(run, data))


def test_a_checkpoint_of_another_run_is_refused(tmp_path, problem, data, whole, monkeypatch):
    run = begun(tmp_path / "run", problem, monkeypatch)
    other = begun(tmp_path / "other", problem, monkeypatch)
    shutil.copytree(other / checkpoint_names(other)[-1], run / "checkpoint-000099")
    with pytest.warns(CheckpointWarning, match=r"checkpoint-000099 cannot.* not of this run"):
        assert_same(whole, bl.resume(run, data))


def test_without_a_sound_checkpoint_the_reasons_are_reported(tmp_path, problem, data, monkeypatch):
    run = begun(tmp_path / "run", problem, monkeypatch)
    for name in checkpoint_names(run):
        (run / name / "manifest.json").write_text("{}")
    with pytest.raises(StorageError, match=r"No checkpoint is sound\..*not one of bayeslearn"):
        bl.resume(run, data)
    with pytest.raises(StorageError, match="no run has begun there"):
        bl.resume(tmp_path / "nothing", data)


def test_a_folder_with_a_run_is_not_written_over(tmp_path, problem, monkeypatch):
    run = begun(tmp_path / "run", problem, monkeypatch)
    with pytest.raises(StorageError, match=r"it holds a run\. Continue it with bl\.resume"):
        fit(problem, checkpoint=run)


def test_a_write_that_fails_costs_no_earlier_checkpoint(
    tmp_path, problem, data, whole, monkeypatch
):
    run = begun(tmp_path / "run", problem, monkeypatch, occasions=3, keep=1)
    before = {name: os.stat(run / name).st_ino for name in checkpoint_names(run)}

    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders, "write_folder", full)
    with pytest.warns(CheckpointWarning, match="No space left on device"):
        again = bl.resume(run, data)
    monkeypatch.undo()
    assert {name: os.stat(run / name).st_ino for name in checkpoint_names(run)} == before
    assert again.notes[0].endswith("checkpoint(s) could not be written.")
    np.testing.assert_array_equal(again.family.mean_vector(), whole.family.mean_vector())
    np.testing.assert_array_equal(again.trace["log_joint"], whole.trace["log_joint"])
    assert_same(whole, bl.resume(run, data))


IN_A_SMALL_WORLD = """
import os, subprocess, sys, warnings
sys.path.insert(0, "tests")
import numpy as np, problems, bayeslearn as bl
folder, what = sys.argv[1:]
os.makedirs(folder)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], check=True)
run, problem = folder + "/run", problems.regression()
data = problem.x, problem.y

def spoil(event):
    if event.step == 40 and what == "full":
        try:
            with open(folder + "/ballast", "wb") as file:
                while True:
                    file.write(bytes(1024))
                    file.flush()
        except OSError:
            pass
    elif event.step == 40:
        # Over the old mount, which cannot be changed while the run holds its lock there.
        subprocess.run(["mount", "--bind", folder, folder], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)

options = dict(
    seed=0, num_steps=60, options=bl.FitOptions(eval_every=20, chunk_size=10)
)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    checkpoint = bl.Checkpoint(run, every=10)
    found = bl.fit(
        problem.model, "map", data, checkpoint=checkpoint, callback=spoil, **options
    )
    names = [w.category.__name__ for w in seen]
assert names == ["CheckpointWarning"], [str(w.message) for w in seen]
kept = sorted(n for n in os.listdir(run) if n.startswith("checkpoint"))
assert len(kept) == 2, kept
if what == "full":
    os.remove(folder + "/ballast")
else:
    subprocess.run(["umount", folder], check=True)
again = bl.resume(run, data, callback=False)
for p in (found, again):
    whole = bl.fit(problem.model, "map", data, **options)
    np.testing.assert_array_equal(p.family.mean_vector(), whole.family.mean_vector())
    for name in whole.trace:
        np.testing.assert_array_equal(p.trace[name], whole.trace[name])
print("the same bits")
"""


@pytest.mark.parametrize("what", ["full", "read-only"])
def test_a_real_file_system_that_fails_costs_no_earlier_checkpoint(tmp_path, what):
    """A small tmpfs in a mount namespace of its own, filled up or made read-only in the middle."""
    may_mount = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)]
    if not shutil.which("unshare") or subprocess.run(may_mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    command = ["unshare", "-m", sys.executable, "-c", IN_A_SMALL_WORLD, str(tmp_path / "t"), what]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stdout.strip() == "the same bits", ended.stderr


# What must be the same, and what must be given again


def test_other_data_are_noticed(tmp_path, problem, data, monkeypatch):
    run = begun(tmp_path / "run", problem, monkeypatch)
    x, y = data
    moved = x.copy()
    moved[7, 2] = np.nextafter(moved[7, 2], 9.0)
    with pytest.raises(ArgumentError, match=r"`data` must be that of the first run, got x with"):
        bl.resume(run, (moved, y))
    with pytest.raises(ArgumentError, match=r"got x of shape \[59, 4\] where it was \[60, 4\]"):
        bl.resume(run, (x[1:], y[1:]))
    with pytest.raises(ArgumentError, match=r"`validation` must be that of the first run"):
        bl.resume(run, data, validation=data)
    with pytest.raises(ArgumentError, match=r"`algorithm` must be as in the first run"):
        bl.resume(run, data, algorithm=bl.MAP(learning_rate=0.5))
    other = bl.Model(problem.model.network, bl.likelihoods.Gaussian(), problem.model.prior)
    with pytest.raises(ArgumentError, match=r"`model` must be as in the first run"):
        bl.resume(run, data, model=other)


def test_other_batches_are_noticed(tmp_path, problem, monkeypatch):
    parts = [(problem.x[i::4], problem.y[i::4]) for i in range(4)]
    kill_after(3, monkeypatch)
    with pytest.raises(Killed):
        bl.fit(
            problem.model,
            "map",
            parts,
            checkpoint=bl.Checkpoint(tmp_path / "run", every=10),
            **STREAM,
        )
    monkeypatch.undo()
    with pytest.raises(DataError, match="gave other batches than in the first run"):
        bl.resume(tmp_path / "run", [parts[0], parts[1], parts[3], parts[2]])
    with pytest.raises(DataError, match=r"ended after 4 batches, and the run .* had taken 20"):
        bl.resume(tmp_path / "run", iter(parts))


def test_what_is_not_data_is_given_again(tmp_path, problem, data, monkeypatch):
    def network(params, x):
        return x @ params

    model = bl.Model((jnp.zeros((4, 1)), network), bl.likelihoods.Gaussian(noise_scale=0.7))
    algorithm = bl.MAP(optimizer=optax.sgd(1e-3))
    options = {
        "checkpoint": bl.Checkpoint(tmp_path / "run", every=10),
        "callback": lambda event: None,
    }
    kill_after(3, monkeypatch)
    with pytest.raises(Killed):
        bl.fit(model, algorithm, data, **OPTIONS, **options)
    monkeypatch.undo()
    run = tmp_path / "run"
    with pytest.raises(ArgumentError, match=r"`callback` must be given again.*callback=False"):
        bl.resume(run, data)
    with pytest.raises(ArgumentError, match=r"`network` must be given again.*cannot be stored"):
        bl.resume(run, data, callback=False)
    with pytest.raises(ArgumentError, match=r"`algorithm` must be given again.*optimizer"):
        bl.resume(run, data, callback=False, network=model.network)
    again = bl.resume(run, data, callback=False, model=model, algorithm=algorithm)
    assert_same(bl.fit(model, algorithm, data, **OPTIONS), again)


def test_a_bare_density_is_given_again(tmp_path, monkeypatch):
    target = bl.Target.from_log_density(lambda w: -jnp.sum((w - 1.0) ** 2), jnp.zeros(3))
    kill_after(3, monkeypatch)
    with pytest.raises(Killed):
        bl.fit(target, "map", checkpoint=bl.Checkpoint(tmp_path / "run", every=10), **OPTIONS)
    monkeypatch.undo()
    with pytest.raises(ArgumentError, match=r"`model` must be given again.*Target"):
        bl.resume(tmp_path / "run")
    again = bl.resume(tmp_path / "run", model=target)
    assert_same(bl.fit(target, "map", **OPTIONS), again)


@pytest.mark.parametrize("every", [0, -1, 1.5, "soon", "5", "1d", True])
def test_every_is_steps_or_a_time(tmp_path, problem, every):
    with pytest.raises(ArgumentError, match="`every` must be"):
        fit(problem, checkpoint=bl.Checkpoint(tmp_path / "run", every=every))


def test_times_between_checkpoints():
    assert checkpoints.check_every("90s")[1] == 90.0
    assert checkpoints.check_every("1.5m")[1] == 90.0
    assert checkpoints.check_every("2h")[1] == 7200.0
    assert checkpoints.check_every(np.int64(3)) == (3, None)


@pytest.mark.parametrize("keep", [1, 3])
def test_the_last_few_are_kept(tmp_path, problem, monkeypatch, keep):
    run = begun(tmp_path / "run", problem, monkeypatch, occasions=6, keep=keep)
    names = checkpoint_names(run)
    assert len(names) == keep
    # and exactly the parts that they name
    named = set()
    for name in names:
        manifest = json.loads((run / name / "manifest.json").read_text())
        named |= {part for part, _ in manifest["description"]["parts"]}
    assert set(checkpoint_names(run, "part")) == named


def test_weakly_typed_numbers_stay_so(x64):
    values = [jnp.asarray(1.5), jnp.asarray(3), jnp.broadcast_to(jnp.asarray(2.5), (2, 3))]
    values.append(jnp.ones(3, jnp.float32))
    again = codec.unpack(*codec.pack(values))
    for a, b in zip(values, again, strict=True):
        assert (a.dtype, a.weak_type, a.shape) == (b.dtype, b.weak_type, b.shape)
        np.testing.assert_array_equal(a, b)


# Faults of the user's own code


def test_a_callback_that_throws_leaves_a_checkpoint(tmp_path, problem, data, whole):
    def throw(event):
        if event.step == 40:
            raise ZeroDivisionError("mine")

    run = tmp_path / "run"
    with pytest.raises(ZeroDivisionError, match="mine"):
        fit(problem, checkpoint=bl.Checkpoint(run, every="1h"), callback=throw)
    manifest = json.loads((run / checkpoint_names(run)[-1] / "manifest.json").read_text())
    assert dict(manifest["description"]["place"]["dict"])["step"] == 40
    assert_same(whole, bl.resume(run, data, callback=False))


def test_an_iterator_that_changes_shape_leaves_a_checkpoint(tmp_path, problem, data):
    x, y = data
    good = [data] * 60
    bad = [*good[:35], (x[:, :3], y), *good[36:]]
    options = STREAM | {"checkpoint": bl.Checkpoint(tmp_path / "run", every="1h")}
    with pytest.raises(DataError, match="rows of shape"):
        bl.fit(problem.model, "map", iter(bad), **options)
    again = bl.resume(tmp_path / "run", iter(good))
    assert_same(
        bl.fit(problem.model, "map", iter(good), **STREAM),
        again,
    )


def test_an_iterator_that_ends_early_leaves_a_checkpoint(tmp_path, problem, data):
    options = STREAM | {"checkpoint": bl.Checkpoint(tmp_path / "run", every="1h")}
    with pytest.raises(DataError, match="ended after 35 of 60 steps"):
        bl.fit(problem.model, "map", iter([data] * 35), **options)
    again = bl.resume(tmp_path / "run", iter([data] * 60))
    whole = bl.fit(problem.model, "map", iter([data] * 60), **STREAM)
    assert_same(whole, again)


def test_batches_that_hold_nan_are_skipped_and_counted(problem, data):
    """The run is that of the other batches alone."""
    x, y = data
    nonfinite = (np.where(np.arange(60)[:, None] == 7, np.nan, x), y)
    parts = [data, nonfinite, (x, np.full_like(y, np.inf)), data]
    found = bl.fit(problem.model, "map", parts, **STREAM)
    assert found.notes == ("60 batches held NaN or infinity and were skipped.",)
    sound = bl.fit(problem.model, "map", [data], **STREAM)
    np.testing.assert_array_equal(found.family.mean_vector(), sound.family.mean_vector())
    with pytest.raises(DataError, match="100 batches in a row that hold NaN"):
        bl.fit(
            problem.model,
            "map",
            iter([data, *[nonfinite] * 100]),
            **STREAM,
        )


def test_draws_of_other_shapes_or_numbers_are_refused():
    like = {"w": np.zeros((5,)), "b": np.zeros(())}  # leaves in the order of their names: b, w
    sound = {"draw of leaf 0": np.zeros((2, 3)), "draw of leaf 1": np.zeros((2, 3, 5))}
    kept = run_state.join_segments([{"log_density": np.zeros((2, 3))}, sound, sound], 1)
    draws = run_state.pop_draws(kept, like, 0)
    assert (draws["w"].shape, draws["b"].shape) == ((2, 6, 5), (2, 6))
    assert list(kept) == ["log_density"]
    for name, leaf in {
        "draw of leaf 1": np.zeros((2, 3, 4)),
        "draw of leaf 0": np.zeros((2, 2)),
    }.items():
        with pytest.raises(StorageError, match="draws of a weight have the shape"):
            run_state.pop_draws(sound | {name: leaf}, like, 0)
    with pytest.raises(StorageError, match="draw of leaf 0"):
        run_state.pop_draws({"draw of leaf 1": sound["draw of leaf 1"]}, like, 0)


def test_a_metric_that_older_segments_lack_is_dropped():
    """Of runs begun by another version; warm-up and draws have segments of their own."""
    old = {"warmup_log_density": np.zeros((2, 3))}, {"log_density": np.zeros((2, 4))}
    new = {"log_density": np.ones((2, 5)), "energy": np.ones((2, 5))}
    kept = run_state.join_segments([*old, new], 1)
    shapes = {name: values.shape for name, values in kept.items()}
    assert shapes == {"warmup_log_density": (2, 3), "log_density": (2, 9)}
