import pytest

from simulations.replications import Job, Store, run_all

CALLS: list[tuple[str, int]] = []


def double(job, shared):
    CALLS.append((job.part, job.settings["seed"]))
    if job.settings["seed"] == shared.get("interrupt at"):
        raise KeyboardInterrupt
    return {"value": 2.0 * job.settings["seed"] + shared["offset"]}


JOBS = [Job("a", {"seed": seed, "nested": {"k": 1}}) for seed in range(4)]


def run(path, shared=None, jobs=JOBS, context="v1"):
    CALLS.clear()
    return run_all(
        jobs, double, shared or {"offset": 0.5}, store=Store(path), context=context, title="t",
        workers=0,
    )  # fmt: skip


def test_numbers_come_with_their_settings(tmp_path):
    frame = run(tmp_path / "r.jsonl")
    assert list(frame.columns) == ["part", "seed", "metric", "value"]
    assert frame["value"].tolist() == [0.5, 2.5, 4.5, 6.5]


def test_finished_replications_are_not_run_again(tmp_path):
    path = tmp_path / "r.jsonl"
    first = run(path)
    again = run(path)
    assert CALLS == []
    assert again.equals(first)


def test_an_interrupted_run_goes_on_where_it_was(tmp_path):
    path = tmp_path / "r.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run(path, {"offset": 0.5, "interrupt at": 2})
    frame = run(path)
    assert CALLS == [("a", 2), ("a", 3)]
    assert frame["value"].tolist() == [0.5, 2.5, 4.5, 6.5]


@pytest.mark.parametrize(
    ("jobs", "context"),
    [
        (JOBS, "other data"),
        ([Job("a", {"seed": s, "nested": {"k": 2}}) for s in range(4)], "v1"),
        ([Job("b", j.settings) for j in JOBS], "v1"),
    ],
    ids=["data", "settings", "part"],
)
def test_what_depends_on_other_things_is_run_again(tmp_path, jobs, context):
    path = tmp_path / "r.jsonl"
    run(path)
    run(path, jobs=jobs, context=context)
    assert len(CALLS) == 4


@pytest.mark.parametrize("cut", [1, 5, 12, 60])
def test_a_line_that_was_cut_off_is_dropped(tmp_path, cut):
    path = tmp_path / "r.jsonl"
    whole = run(path)
    path.write_bytes(path.read_bytes()[:-cut])
    frame = run(path)
    # Without its line break alone the last line is still whole.
    assert len(CALLS) <= 1 if cut < 10 else CALLS == [("a", 3)]
    assert frame.equals(whole)
    run(path)
    assert CALLS == []


def test_lines_of_other_kinds_are_left_alone(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('x,y\n{"key": 1}\n[1, 2]\n"open quote\n')
    assert len(run(path)) == 4
    assert len(Store(path).found) == 4
