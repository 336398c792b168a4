"""`course plan` prints a plan, several next to each other, or the best that fits, and refuses what it cannot plan."""

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from course_lib import planner
from course_lib.commands import arguments
from course_lib.commands.cli import main
from course_lib.planner import HARDWARE, MODELS, Settings, plan, size, spelling


@pytest.fixture
def course(capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    def printed(line: str, code: int = 0) -> str:
        assert main(["plan", *shlex.split(line)]) == code
        out, error = capsys.readouterr()
        return out if code == 0 else error

    return printed


def paragraphs(planned: planner.Plan) -> str:
    """A plan's page without its defaults, which the command names as options."""
    head, _, *rest = planner.page(planned, HARDWARE["h100-infiniband"])
    return "\n\n".join([head, *rest])


# A plan


def test_it_prints_the_plan_of_the_settings(course) -> None:  # type: ignore[no-untyped-def]
    text = course("llama-3-70b --gpus 64 --gpu h100 --stage 3 --tp 4 --checkpointing full --offload optimizer")
    planned = plan(
        model="llama3-70b", world_size=64, stage=3, tensor_parallel=4, checkpointing="full", offload=("optimizer",),
        attention="flash", sequence=4096,
    )  # fmt: skip

    assert paragraphs(planned) in text
    assert f"micro-batch that fits has {planner.largest_batch(planned, 'h100-infiniband')} sequences." in text
    assert f"sequence that fits has {planner.longest_sequence(planned, 'h100-infiniband')} tokens." in text
    assert f"It needs {planner.fewest_ranks(planned, 'h100-infiniband')} GPUs or more." in text
    assert "sequence that fits has 1024 tokens, the most that the model was made for." in course("gpt2 --gpu a100")
    assert "software of 2023" in course("gpt2") and "software of 2023" not in course("gpt2 --gpu a100")
    assert "all_gather" not in text


def test_it_says_first_what_nobody_gave(course) -> None:  # type: ignore[no-untyped-def]
    assumed = "Assumed, as you gave nothing else: {}--sequence {} --attention flash --stage 3 --{}"

    assert course("llama3-8b").startswith(assumed.format("--gpu h100 ", 4096, "gpus 8 --engine"))
    assert course("gpt2 --gpu RTX4090").startswith(assumed.format("", 1024, "gpus 4 --engine"))
    assert course("gpt2 --gpus 16").startswith(assumed.format("--gpu h100-infiniband ", 1024, "engine"))
    several = course("gpt2 --gpu h100 --gpus 16")
    assert several.startswith(assumed.format("", 1024, "engine"))
    assert "\n\nA node of --gpu h100 has 8 GPUs, so the plan is for several: --gpu h100-infiniband.\n\n" in several
    text = course("gpt2 --sequence 9 --attention math --stage 1 --gpus 2 --batch 1 --optimizer lion --precision bf16")
    assert text.startswith(
        "Assumed, as you gave nothing else: --gpu h100 --engine paper --implementation for-loop --micro-batches 1 "
        "--checkpointing none\n\n"
    )
    assert "--checkpointing none --frozen bf16 --adapted all\n" in course("gpt2 --lora-rank 16")


def test_why_explains_every_part(course) -> None:  # type: ignore[no-untyped-def]
    text = course("llama3-8b --why")
    planned = plan(model="llama3-8b", world_size=8, stage=3, attention="flash", sequence=4096)

    assert all(part.name in text for part in planned.parts)
    assert planned.explain("h100").partition("\n\n")[2] in text
    assert "inside of the feed-forward layer" in text


@pytest.mark.parametrize(
    "name", ["llama3-8b", "Llama 3.1 8B", "meta-llama/Llama-3.1-8B", "llama_3_8b", "meta-llama/Meta-Llama-3-8B"]
)
def test_names_may_be_written_as_elsewhere(course, name: str) -> None:  # type: ignore[no-untyped-def]
    assert "Llama 3.1 8B: 8,030,261,248 parameters" in course(f"'{name}'")


def test_models_of_one_shape_have_one_plan_and_the_nearest_begins_alike(course) -> None:  # type: ignore[no-untyped-def]
    assert "Llama 3.1 70B: 70,553,706,496 parameters" in course("meta-llama/Llama-3.3-70B-Instruct --gpus 64")
    assert "The nearest by name is llama3-8b." in course("llama3.2-3b", code=1)


def test_options_of_other_programs_are_read(course) -> None:  # type: ignore[no-untyped-def]
    other = course("gpt2 --gpus 8 --batch-size 4 --seq-len 512 --zero 2 --grad-accum 4")
    assert other == course("gpt2 --gpus 8 --batch 4 --sequence 512 --stage 2 --micro-batches 4")
    assert other == course("gpt2 --num-gpus 8 --batch_size=4 --context 512 --stage 2 --gradient_accumulation_steps 4")
    assert course("gpt2 --sequence 1k --optimizer AdamW --precision bfloat16 --compile") == course(
        "gpt2 --sequence 1024 --optimizer adamw --precision bf16 --compiled yes"
    )


def test_switches_of_other_programs_get_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "gpt2", "--gradient-checkpointing", "--fast", "--nodes=2"])

    hint = "--gradient-checkpointing --fast --nodes=2. Give --checkpointing full. Give --gpus, the GPUs of all nodes\n"
    assert capsys.readouterr().err.endswith(f"course plan does not know {hint}")


def test_what_no_number_of_gpus_fits_gets_advice(course) -> None:  # type: ignore[no-untyped-def]
    given = "llama3-70b --gpus 64 --sequence 16384"
    assert "More GPUs do not help. Try --checkpointing full, or --fit." in course(given)
    assert "do not help. Try --fit without --stage." in course("llama-405b --gpus 8 --stage 0 --checkpointing full")
    card = "llama3-8b --gpu rtx-5090 --checkpointing full"
    assert "It needs 8 GPUs, and this hardware has 4. Try --fit." in course(card)
    assert "the best that fits" in course(f"{card} --fit")
    for gpu, fewest in (("h100", 24), ("h200", 16)):
        assert f"It needs {fewest} GPUs or more." in course(f"llama3-70b --gpu {gpu} --checkpointing full")
    apart = course("llama3-70b --gpus 64 --checkpointing full --shard-size 8 --reshard 4")
    assert "It needs 24 GPUs or more, with --shard-size none and --reshard yes." in apart
    assert "nodes of 8x H200 over InfiniBand" in course("llama3-70b --gpu h200 --gpus 16")


def test_what_may_fit_is_not_sure_to_fit(course) -> None:  # type: ignore[no-untyped-def]
    assert "Not even one sequence is sure to fit." in course("llama3-8b --gpus 8 --sequence 10240")
    assert "Not even one sequence fits." in course("llama3-8b --gpus 8 --sequence 12288")


def test_a_state_named_twice_is_offloaded_once(course) -> None:  # type: ignore[no-untyped-def]
    assert "adam, optimizer on the host." in course("7b --offload optimizer,optimizer")
    assert course("--params 1").partition("a model: ")[2].startswith("1 parameter; ")


@pytest.mark.parametrize("given", ["7b", "7B", "7e9", "7000m", "7000000000", "--params 7e9", "--params 7b"])
def test_a_number_of_parameters_is_planned_too(course, given: str) -> None:  # type: ignore[no-untyped-def]
    text = course(f"{given} --gpus 4")

    assert "a model: 7,000,000,000 parameters; stage 3 on 4 ranks" in text
    assert "\n\nIt needs 2 GPUs or more." in text


def test_a_config_of_hugging_face_is_planned(course, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    llama = MODELS["llama3-8b"]
    config = {
        "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
        "tie_word_embeddings": False, "hidden_act": "silu",
    }  # fmt: skip
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))

    assert f"{plan(model=llama).model.params:,} parameters" in course(f"--config {file} --fit")
    assert f"Again: course plan --config {file}" in course(f"--config {file} --fit")


# Comparing


def test_a_setting_given_twice_is_compared(course) -> None:  # type: ignore[no-untyped-def]
    text = course("llama3-8b --checkpointing none --checkpointing full --stage 2 --stage 3")
    given = {"model": "llama3-8b", "world_size": 8, "attention": "flash", "sequence": 4096}
    rows = [line for line in text.splitlines() if line.startswith("--stage")]

    assert [re.split(r"  +", row)[0] for row in rows] == [
        f"--stage {stage} --checkpointing {how}" for stage in (2, 3) for how in ("none", "full")
    ]
    for row, stage, how in zip(rows, (2, 2, 3, 3), ("none", "full") * 2, strict=True):
        planned = plan(**given, stage=stage, checkpointing=how)
        expected = (size(planned.peak_bytes), size(planned.sent_bytes), *planner.costs(planned, HARDWARE["h100"]))
        assert re.split(r"  +", row)[1:] == list(expected)


def test_a_comparison_says_what_is_left_out_and_for_which_rows(course) -> None:  # type: ignore[no-untyped-def]
    number = course("7b --gpus 8 --checkpointing none --checkpointing full")
    stages = course("llama-7b --stage 2 --stage 3 --reshard no")

    assert number.count("\nOnly the number of parameters is known. The plan leaves out buffers, activations, ") == 1
    assert "\n--stage 2: --reshard no changes nothing: only stage 3 gathers parameters.\n" in stages
    assert "--reshard no changes nothing" in course("llama-7b --stage 2 --reshard no")
    assert "all is trained. Give --lora-rank 16 or --trainable 0.01 as well." in course("gpt2 --frozen nf4")


def test_a_comparison_of_a_number_says_what_ranks_send_at_least(course) -> None:  # type: ignore[no-untyped-def]
    text = course("7b --gpus 8 --tp 8 --tp 2")

    assert re.search(r"^--tp 8 +14 GB +at least 0 bytes ", text, re.MULTILINE)
    assert "\nThe plan also leaves out the activations that ranks exchange: they send more, " in text


def test_what_does_not_go_together_is_left_out_and_said(course) -> None:  # type: ignore[no-untyped-def]
    text = course("llama3-8b --stage 0 --stage 3 --offload none --offload optimizer")

    assert "with offload took 0.4 to 5 times" in text and "full power, these steps may take 0.7" in text
    assert "\nOther seconds on H100 and newer GPUs are those of software of 2023." in text
    assert sum(line.startswith("--stage") and " fit" in line for line in text.splitlines()) == 3
    assert "--stage 0 --offload optimizer: --offload optimizer with --stage 0: a rank moves its own shard" in text


# Searching


def test_fit_finds_the_fastest_and_prints_the_command_of_its_plan(course) -> None:  # type: ignore[no-untyped-def]
    text = course("llama-70b --gpus 64 --fit")
    best = planner.choose("llama-70b", "h100-infiniband", world_size=64, sequence=4096).best
    again = text.splitlines()[-1].removeprefix("Again: course plan ")

    assert f"{best}\n" in text
    assert paragraphs(best.plan) in text
    assert paragraphs(best.plan) in course(again)
    assert "; --why prints all." in text
    assert "--why prints all" not in course("7b --fit --tp 8")  # four ways


def test_fit_varies_only_what_is_left_out(course) -> None:  # type: ignore[no-untyped-def]
    text = course("llama-7b --fit --why --stage 2 --tp 1 --pp 1 --global-batch 32")
    ways = text.partition("\n\n")[2].partition("\n\n")[0].splitlines()[1:]

    assert len(ways) == 6
    assert all("stage 2 on 8 ranks, mixed" in way for way in ways)
    assert "--micro-batches 4" in text


def test_tokens_find_the_cheapest_on_as_many_nodes_as_it_needs(course) -> None:  # type: ignore[no-untyped-def]
    text = course("llama3-8b --tokens 1t --days 30 --checkpointing full")
    best = planner.cheapest("llama3-8b", "h100-infiniband", tokens=1e12, days=30, sequence=4096, checkpointing="full")

    assert f"{best}.\nPublished trainings took 1.0 to 2.5 times as many GPU-hours" in text
    assert f"--gpus {best.plan.settings.world_size}" in text.splitlines()[-1]
    assert "on at most 16 ranks" in course("llama3-8b --tokens 1t --gpus 16", code=1)


def test_nothing_fits_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "llama-405b", "--gpu", "rtx-4090", "--fit"]) == 1
    out, error = capsys.readouterr()
    assert out == "Assumed, as you gave nothing else: --sequence 4096 --attention flash --gpus 4\n"  # before the search
    assert error.startswith("course plan: nothing fits on 4x RTX 4090, PCIe. The nearest is ")


# Refusing


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (
            "llama3-9b",
            "llama3-9b: there is no model of this name. The nearest by name is llama3-8b. For any other, give --config",
        ),
        ("gpt2 --gpu v100", "--gpu v100: there is no such hardware. Choose one of laptop, rtx-4090, rtx-5090, a100,"),
        ("gpt2 --gpu a100 --gpu h100", "--gpu twice: a plan is for one kind of node. Run the command once for each."),
        ("gpt2 --stage 7", "--stage 7: it has to be a whole number, from 0 to 3. Try --stage 3."),
        ("gpt2 --stage three", "--stage three: it does not have this value. Give a number, such as 8 or 7e9."),
        ("gpt2 --stage nan", "--stage nan: it has to be a whole number"),
        ("gpt2 --compiled maybe", "--compiled maybe: it does not have this value. Give yes or no."),
        ("gpt2 --shard-size all", "--shard-size all: it does not have this value. Give none or a number"),
        (
            "gpt2 --attention sdpa",
            "--attention sdpa: there is no such attention. Choose one of math, flash,",
        ),
        ("gpt2 --offload weights", "--offload weights: there is no such offload. Choose one of optimizer, parameters."),
        ("gpt2 --gpus 6 --tp 4", "--gpus 6 with --tp 4 and --pp 1: the ranks do not fall into groups of 4. Choose a"),
        (
            "gpt2 --engine zero --reshard no",
            "--engine zero with --reshard no: this course's stage 3 frees each unit after forward. "
            "Choose --reshard yes, or another engine.",
        ),
        ("llama3-8b --ep 2", "--ep 2 with Llama 3.1 8B: it has no experts. Leave it out"),
        ("gpt2 --gpu rtx-4090 --gpus 8", "8 ranks on 4x RTX 4090, PCIe: that is one node with 4 devices."),
        ("gpt2 --fit --gpus 8 --gpus 16", "--gpus twice: a search varies what you leave out."),
        ("gpt2 --bucket-bytes 25MB", "--bucket-bytes 25MB: it does not have this value."),
        ("gpt2 --compiled Maybe", "--compiled Maybe: it does not have this value."),
        ("gpt2 --fit --stage 1 --stage 2", "--stage twice: a search varies what you leave out."),
        ("gpt2 --global-batch 64", "--global-batch without --fit: nothing else reads it. Give both."),
        ("gpt2 --fit --tokens 1e9", "--fit and --tokens: each is a search of its own. Give one of the two."),
        ("gpt2 --days 3", "--days without --tokens: nothing else reads it. Give both."),
        ("gpt2 --params 7e9", "name one model: a name, such as llama3-8b, or --params 7e9, or --config config.json."),
        ("--params 7e9 --params 70e9", "name one model"),
        ("--gpus 8", "name one model"),
        ("--config nowhere.json", "--config nowhere.json: [Errno 2] No such file or directory"),
        ("gpt2 --tokens 1e9 --gpus 0", "--gpus 0: it has to be a whole number, 1 or more. Try --gpus 1."),
        ("gpt2 --fit --micro-batches 0", "--micro-batches 0: it has to be a whole number, 1 or more."),
        ("gpt2 --why --stage 1 --stage 2", "--why with --stage twice: it explains one plan. Give each setting once."),
        ("gpt2 --engine torch --stage 2 --stage 2", "--engine torch with --stage 2: torch has nothing that shards"),
        ("gpt2 --gpus 12 --stage 1 --stage 2", "12 ranks on nodes of 8x H100 over InfiniBand: they fill no whole"),
        (
            "gpt2 --tp 1 --tp 5 --tp 6 --engine torch --stage 1",
            "none of these can be planned.\n--tp 1: --engine torch with --precision mixed and --stage 1: ",
        ),
        ("llama3-8b --fit --ep 8 --offload optimizer", "--ep 8 with Llama 3.1 8B: it has no experts."),
        (
            "llama3-8b --fit --global-batch 8 --batch 3 --tp 2",
            "--global-batch 8 with --batch 3: a micro-batch on all ranks has 12 sequences. Choose a multiple of 12 as "
            "--global-batch, or a smaller batch.",
        ),
        ("gpt2 --fit --global-batch 64 --gpus 3 --tp 4", "--gpus 3 with --tp 4 and --pp 1: the ranks do not fall into"),
        (
            "gpt2 --stage 2 --offload optimizer,parameters",
            "--offload optimizer,parameters with --stage 2: a rank moves",
        ),
        ("gpt2 --tokens many", "--tokens many: it does not have this value. Give a number, such as 8 or 7e9."),
    ],
)
def test_what_cannot_be_planned_is_refused(course, line: str, error: str) -> None:  # type: ignore[no-untyped-def]
    assert course(line, code=1).startswith(f"course plan: {error}")


def test_a_file_that_describes_no_known_model_is_refused(course, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "config.json").write_text("{")
    assert "Name a model's config.json." in course(f"--config {tmp_path}/config.json", code=1)
    (tmp_path / "config.json").write_text('{"model_type": "ä"}', "utf-16")
    assert "it is not text in UTF-8. Name a model's config.json" in course(f"--config {tmp_path}/config.json", code=1)
    (tmp_path / "config.json").write_text('{"kv_lora_rank": 512}')
    assert "a number of parameters instead, such as --params 7e9." in course(f"--config {tmp_path}/config.json", code=1)
    (tmp_path / "config.json").write_text(r'{"model_type": "\u001b[2J"}')
    assert r"config.json of \x1b[2J: without" in course(f"--config {tmp_path}/config.json", code=1)


# Its help


def test_without_arguments_it_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan"]) == 2
    help = capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["plan", "--help"])

    assert capsys.readouterr().out == help
    assert all(name in help for name in (*MODELS, *HARDWARE, *planner.PRECISIONS, *planner.OPTIMIZERS))


@pytest.mark.parametrize("field", fields(Settings), ids=lambda field: field.name)
def test_each_setting_is_an_option_with_its_line_of_the_docstring(
    capsys: pytest.CaptureFixture[str], field: object
) -> None:
    main(["plan"])
    words = " ".join(capsys.readouterr().out.replace("-\n", "-").split())
    option = arguments.flag(field.name)  # type: ignore[attr-defined]

    about = re.search(rf"{option} \[?VALUE\]?(?:, --\w+ VALUE)? (.{{8}})", words)
    assert about and not about[1].startswith("(")


@pytest.mark.parametrize("value", [0, 3, 2.5, True, False, None, "flash", (), ("optimizer", "parameters")])
def test_a_value_is_read_as_it_was_written(monkeypatch: pytest.MonkeyPatch, value: object) -> None:
    kinds = {int: "stage", float: "stage", bool: "reshard", str: "attention", tuple: "offload"}
    assert spelling.read(kinds.get(type(value), "shard_size"), spelling.written(value)) == value


def test_every_question_of_the_help_has_a_command_that_runs(course) -> None:  # type: ignore[no-untyped-def]
    """What stands on the right of each question is options, except for remarks in quotes."""
    lines = [re.split(r"   +", line.strip())[-1] for line in arguments.QUESTIONS.splitlines()[1:]]
    commands = [line.partition(": ")[2] if line.startswith("two") else line for line in lines]
    commands = [line for line in commands if line.startswith("--")]

    assert len(commands) == 11
    for line in commands:
        course(f"llama3-8b {line}")
