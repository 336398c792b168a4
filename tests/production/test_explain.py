"""A DeepSpeed configuration in words, and what is named as wrong in one."""

import subprocess
import sys
from typing import Any

import pytest

from course_lib import CourseError
from course_lib.production import explain
from course_lib.production.settings import GONE, SECTIONS, SETTINGS, UNEXPLAINED

BATCH = {"train_micro_batch_size_per_gpu": 4}


def faults(world_size: int | None = None, **config: Any) -> list[str]:
    return list(explain(BATCH | config, world_size).faults)


def zero(**settings: Any) -> dict[str, Any]:
    return {"zero_optimization": settings}


def test_each_setting_is_told_with_its_cost_and_its_equivalent() -> None:
    told = repr(explain(BATCH | zero(stage=3, stage3_prefetch_bucket_size=50_000)))

    assert "zero_optimization.stage3_prefetch_bucket_size = 50,000\n    does   Elements of parameters" in told
    for setting in ("zero_optimization.stage", "train_micro_batch_size_per_gpu"):
        assert SETTINGS[setting].does in told
        assert SETTINGS[setting].costs in told
        assert SETTINGS[setting].fsdp2 in told
    assert "Faults" not in told


def test_the_table_is_whole() -> None:
    for name, setting in SETTINGS.items():
        assert all([setting.does, setting.costs, setting.fsdp2]), name
    assert not SETTINGS.keys() & UNEXPLAINED
    assert not (SETTINGS.keys() | UNEXPLAINED) & GONE.keys()
    assert {
        *("optimizer", "bf16", "fp16", "zero_optimization"),
        *("zero_optimization.offload_param", "zero_optimization.offload_optimizer"),
    } == SECTIONS


def test_a_section_of_offload_may_be_null() -> None:
    """As in DeepSpeed, whose default it is."""
    assert faults(**zero(stage=3, offload_optimizer=None, offload_param=None)) == []
    assert "offload" not in repr(explain(BATCH | zero(stage=1, offload_optimizer=None)))
    assert faults(bf16=None) == ["bf16: a section is wanted, with settings in it. Write {...}."]


def test_defaults_that_surprise_are_told_where_they_hold() -> None:
    assert explain(BATCH).unsaid == ("gradient_clipping",)
    assert explain(BATCH | {"gradient_clipping": 0.0}).unsaid == ()
    assert len(explain(BATCH | zero(stage=2)).unsaid) == 2
    assert len(explain(BATCH | zero(stage=3)).unsaid) == 4
    assert "gradient_clipping is not given: 1.0" in repr(explain(BATCH))


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        (
            {"gradient_cliping": 1.0},
            "gradient_cliping: DeepSpeed knows no such setting. Did you mean gradient_clipping?",
        ),
        (
            {"zero_optimisation": {}},
            "zero_optimisation: DeepSpeed knows no such setting. Did you mean zero_optimization?",
        ),
        (
            zero(overlap_com=True),
            "zero_optimization.overlap_com: DeepSpeed knows no such setting. "
            "Did you mean zero_optimization.overlap_comm?",
        ),
        *(
            ({name: {"enable": False}}, f"{name}.enable: DeepSpeed knows no such setting. Did you mean {name}.enabled?")
            for name in ("bf16", "fp16")
        ),
        ({"stage": 3}, "stage: DeepSpeed knows no such setting. Did you mean zero_optimization.stage?"),
        ({"qwertz": 3}, "qwertz: DeepSpeed knows no such setting. Take it out."),
        (
            zero(cpu_offload=True),
            "zero_optimization.cpu_offload: It is out of date. Use offload_optimizer with device cpu.",
        ),
        (
            {"progressive_layer_drop": {"enabled": True}},
            "progressive_layer_drop: DeepSpeed has removed it. Take it out.",
        ),
        ({"bf16": True}, "bf16: a section is wanted, with settings in it. Write {...}."),
        ({"zero_optimization": 3}, "zero_optimization: a section is wanted, with settings in it. Write {...}."),
    ],
)
def test_an_unknown_name_is_named_with_the_one_that_was_meant(config: dict[str, Any], fault: str) -> None:
    assert faults(**config) == [fault]


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "bf16.enabled"),
        (zero(stage=2, offload_param={"device": "cpu"}), "zero_optimization.offload_param.device"),
        (zero(stage=1, stage3_max_live_parameters=0), "zero_optimization.stage3_max_live_parameters"),
        (zero(offload_optimizer={"device": "cpu"}), "zero_optimization.offload_optimizer.device"),
        ({"optimizer": {"params": {"max_grad_norm": 1.0}}}, "optimizer.params.max_grad_norm"),
        ({"train_batch_size": 33}, "train_batch_size"),
    ],
)
def test_a_contradiction_is_named(config: dict[str, Any], named: str) -> None:
    assert [fault.split(":")[0] for fault in faults(**config)] == [named]


@pytest.mark.parametrize(
    "config",
    [
        {"bf16": {"enabled": True}, "fp16": {"enabled": False}},
        {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}, "gradient_clipping": "auto"},
        zero(stage=3, offload_param={"device": "nvme", "nvme_path": "/disk"}, stage3_max_live_parameters=1e9),
        zero(stage=1, offload_optimizer={"device": "cpu"}, reduce_bucket_size=5e8),
        {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"},
        {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}, "steps_per_print": 10},
    ],
)
def test_what_is_right_has_no_fault(config: dict[str, Any]) -> None:
    assert faults(**config) == []


@pytest.mark.parametrize(
    ("whole", "steps", "world_size", "right"),
    [(32, 2, 4, True), (32, 1, 4, False), (32, None, 4, True), (36, None, 4, False), (36, None, None, True)],
)
def test_sizes_of_batches_are_compared_with_the_ranks(
    whole: int, steps: int | None, world_size: int | None, right: bool
) -> None:
    given = {} if steps is None else {"gradient_accumulation_steps": steps}
    assert (faults(world_size, train_batch_size=whole, **given) == []) == right


def test_one_size_of_a_batch_is_needed() -> None:
    assert explain({}).faults[0].startswith("train_batch_size: neither it nor train_micro_batch_size_per_gpu is given")


def test_auto_is_told() -> None:
    assert "gradient_clipping = 'auto': Hugging Face's Trainer fills it in" in repr(
        explain(BATCH | {"gradient_clipping": "auto"})
    )


def test_what_is_known_and_not_explained_is_listed() -> None:
    assert explain(BATCH | {"steps_per_print": 5}).unexplained == ("steps_per_print",)
    assert "Not explained here: steps_per_print" in repr(explain(BATCH | {"steps_per_print": 5}))


def test_it_needs_no_torch() -> None:
    program = "from course_lib import production; production.explain({}); import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_a_path_is_refused_with_how_to_read_it() -> None:
    with pytest.raises(CourseError, match=r"explain\('ds\.json'\): that is no configuration\. .*json\.load"):
        explain("ds.json")  # type: ignore[arg-type]
