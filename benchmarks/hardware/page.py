"""The pages on hardware, in both languages, and their pictures: written from the results alone.

python -m hardware.page [docs/hardware]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from hardware.cells import PEER_RATIO, TOOLS, Cell, cells
from hardware.machine import ROOT

_TOOL_NAMES = {"ascendtune": "ascendtune", "bare": "bare", "trl": "TRL", "llamafactory": "LLaMA-Factory"}
_TEXTS: dict[str, dict[str, str]] = {
    "en": {
        "title": "# Hardware",
        "note": "Written by `make hardware` from the results below this folder; do not edit it.",
        "none": "**Not run on a GPU yet.** No figure on this page was measured on an accelerator.",
        "how": """## How to run it

```
make hardware                                   # all pieces that have not passed
make hardware PYTHON=python3.12 WHEELS=wheels   # packages that this Python lacks come from a folder
make hardware MINUTES=9                         # end after nine minutes; go on with the same command
```

It needs Python >= 3.11 with torch >= 2.6, transformers and PEFT; it needs no package index and no `.venv`. Packages
that are installed stay as they are; what is missing is taken from the folder of wheels (at most 64 MiB). Wheels in
`wheels/llamafactory` or `wheels/trl` are for that tool alone, which may need other versions. Each piece is a process of
at most nine minutes; one that has passed with the same code and packages is not run again. Results are in
`docs/hardware/DEVICE/results.json`; the exit code is 1 where a piece failed, and 75 where some are left. Without a GPU
the small form runs on the CPU, with tiny models.

The tests train and compute on the device and hold losses, gradients, attention, fused operators, resumed runs, merged
models and generated text against the CPU. The speed table trains models of 1 and 8 billion parameters with random
weights on packed rows of very different length. Models are held in bf16; in cells that end in `-fp32` they are held in
fp32, the default of full fine-tuning, and multiplied in bf16. ascendtune runs as a user runs it. `bare` is a compiled
transformers model in a plain loop that neither separates the documents of a row nor records anything. TRL and
LLaMA-Factory take part where they are installed.""",
        "targets": "## Targets on one NVIDIA H200",
        "targets_head": "| cell | target, tokens/s | measured |",
        "not_measured": "not measured",
        "missing": "Not measured on this device: {}.",
        "ratio": "Beside them: at least {} times the speed of TRL's and LLaMA-Factory's best setting.",
        "versions": "Versions: {}.",
        "tests_head": "| tests | passed | failed | skipped |",
        "speed_head": "| cell | tool | tokens/s | step | MFU, needed | MFU, 6N | peak memory | planned |",
        "mfu": """MFU, needed: the FLOPs of one forward and backward pass without what training can leave out: the head
at positions without a label, attention between documents, gradients of frozen weights. MFU, 6N: (6 N + 12 L H Q T) for
each token (PaLM, arXiv 2204.02311, appendix B). Tokens are real ones, without padding. Planned: what `ascendtune plan`
expects.""",
        "peers": "{}.",
        "peer": "{} {} ran with {}",
        "no_flash": """FlashAttention's package (flash-attn) was not installed, so TRL and LLaMA-Factory computed
attention with SDPA. Keeping the documents of a packed row apart then takes a mask of the whole row, which costs them
speed; `bare` shows SDPA without such a mask.""",
        "failed": "Failed:",
        "small": "## Small form on the CPU",
        "small_says": "It shows that the pieces run. It says nothing about an accelerator; speeds are not shown.",
        "small_head": "| piece | state | |",
        "picture": "Tokens per second of each cell and tool",
    },
    "zh": {
        "title": "# 硬件",
        "note": "本页由 `make hardware` 根据本目录下的结果生成，请勿手工修改。",
        "none": "**尚未在 GPU 上运行。** 本页没有任何在加速卡上测得的数字。",
        "how": """## 如何运行

```
make hardware                                   # 运行所有尚未通过的部分
make hardware PYTHON=python3.12 WHEELS=wheels   # 该 Python 缺少的包从一个目录中安装
make hardware MINUTES=9                         # 九分钟后结束；再次执行同一命令即可继续
```

需要 Python 3.11 或更高版本，并已安装 torch 2.6 或更高版本、transformers 和 PEFT；不需要软件源，也不需要 `.venv`。
已安装的包保持不变；缺少的包取自 wheel 目录（总共不超过 64 MiB）。`wheels/llamafactory` 或 `wheels/trl` 中的 wheel
只供该工具使用，它可能需要别的版本。每个部分是一个独立进程，最长九分钟；
用同样的代码和软件包已经通过的部分不再重复。结果保存在 `docs/hardware/DEVICE/results.json`；
有部分失败时退出码为 1，还有部分没有运行时为 75。
没有 GPU 时，在 CPU 上用极小的模型运行小规模版本。

测试在设备上训练和计算，并把损失、梯度、注意力、融合算子、断点续训、合并后的模型和生成的文本与 CPU 的结果对照。
速度表用随机权重训练 10 亿和 80 亿参数的模型，数据是打包后的长短不一的行。模型权重为 bf16；
名称以 `-fp32` 结尾的配置用 fp32 保存权重（全参数微调的默认值），以 bf16 做矩阵乘法。ascendtune 按用户的方式运行；
`bare` 是编译后的 transformers 模型加一个最简单的循环，既不区分一行中的各个文档，也不做任何记录；
TRL 和 LLaMA-Factory 在已安装时参与比较。""",
        "targets": "## 单张 NVIDIA H200 的目标",
        "targets_head": "| 配置 | 目标（token/s） | 实测 |",
        "not_measured": "未测",
        "missing": "这一设备上没有测量：{}。",
        "ratio": "此外：速度至少是 TRL 和 LLaMA-Factory 最佳设置的 {} 倍。",
        "versions": "版本：{}。",
        "tests_head": "| 测试 | 通过 | 失败 | 跳过 |",
        "speed_head": "| 配置 | 工具 | token/s | 每步 | MFU（必需） | MFU（6N） | 峰值内存 | 预估 |",
        "mfu": """MFU（必需）：只计训练必不可少的一次前向和反向计算，不计没有标签的位置的输出层、文档之间的注意力和
冻结权重的梯度。MFU（6N）：每个 token 计 (6 N + 12 L H Q T)（PaLM，arXiv 2204.02311，附录 B）。
token 均为真实 token，不含填充。预估：`ascendtune plan` 的预估值。""",
        "peers": "{}。",
        "peer": "{} {} 使用 {}",
        "no_flash": """本机没有安装 FlashAttention 的软件包（flash-attn），因此 TRL 和 LLaMA-Factory
用 SDPA 计算注意力。此时要隔开打包行中的各个文档，就需要整行的掩码，速度因此降低；
`bare` 展示的是没有这种掩码的 SDPA。""",
        "failed": "失败：",
        "small": "## CPU 上的小规模版本",
        "small_says": "它只说明各部分能够运行，与加速卡无关，因此不列出速度。",
        "small_head": "| 部分 | 状态 | |",
        "picture": "各配置、各工具每秒处理的 token 数",
    },
}
_STATES = {"passed": "通过", "failed": "失败", "skipped": "跳过"}


def write(directory: Path) -> None:
    """README.md and README.zh-CN.md of `directory`, and a picture for each device with speeds."""
    results = read(directory)
    directory.mkdir(parents=True, exist_ok=True)
    for name, of_device in results.items():
        if of_device["form"] == "full":
            draw(speeds(of_device), directory / name / "speed.png")
    for language, name in (("en", "README.md"), ("zh", "README.zh-CN.md")):
        (directory / name).write_text(text(results, language, directory), encoding="utf-8")


def read(directory: Path) -> dict[str, dict[str, Any]]:
    """Name of a device -> its results."""
    return {file.parent.name: json.loads(file.read_text()) for file in sorted(directory.glob("*/results.json"))}


def text(results: dict[str, dict[str, Any]], language: str, directory: Path) -> str:
    """The page on `results`; pictures are shown where they are in `directory`."""
    say = _TEXTS[language]
    full = {name: each for name, each in results.items() if each["form"] == "full"}
    small = [each for each in results.values() if each["form"] == "small"]
    parts = [say["title"], say["note"], *([] if full else [say["none"]]), _targets(full, say)]
    for name, each in full.items():
        parts += _of_device(name, each, say, has_picture=(directory / name / "speed.png").exists())
    for each in small:
        rows = [
            f"| {name} | {_state(piece, language)} | {_shown(piece['summary']) if 'tests' in piece else ''} |"
            for name, piece in each["pieces"].items()
        ]
        versions = say["versions"].format(_versions(each))
        parts += [
            say["small"],
            f"{say['small_says']} {versions}",
            "\n".join([say["small_head"], "|---|---|---|", *rows]),
        ]
    return "\n\n".join([*parts, say["how"]]) + "\n"


def speeds(of_device: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """(cell, tool) -> figures of the pieces that passed."""
    found = [each["speed"] for each in of_device["pieces"].values() if each["state"] == "passed" and "speed" in each]
    return {(each["cell"], each["tool"]): each for each in found}


def _targets(full: dict[str, dict[str, Any]], say: dict[str, str]) -> str:
    h200 = next((each for each in full.values() if "H200" in each["device"]["name"]), {"pieces": {}})
    rows = []
    for cell in (each for each in cells(small=False) if each.target is not None):
        found = speeds(h200).get((cell.name, "ascendtune"))
        measured = say["not_measured"] if found is None else f"{found['tokens_per_second']:,.0f}"
        rows.append(f"| {cell.name} | {cell.target:,} | {measured} |")
    table = "\n".join([say["targets_head"], "|---|---|---|", *rows])
    return f"{say['targets']}\n\n{table}\n\n{say['ratio'].format(PEER_RATIO)}"


def _of_device(name: str, of_device: dict[str, Any], say: dict[str, str], *, has_picture: bool) -> list[str]:
    device = of_device["device"]
    parts = [f"## {_shown(device['name'])}", say["versions"].format(_versions(of_device))]
    tests = {key: each for key, each in of_device["pieces"].items() if "tests" in each}
    rows = []
    for key, piece in tests.items():
        counts = [sum(each["state"] == state for each in piece["tests"]) for state in ("passed", "failed", "skipped")]
        rows.append(f"| {key} | " + " | ".join(map(str, counts)) + " |")
    if rows:
        parts.append("\n".join([say["tests_head"], "|---|---|---|---|", *rows]))
    found = speeds(of_device)
    rows = [
        _speed_row(cell, tool, found) for cell in cells(small=False) for tool in TOOLS if (cell.name, tool) in found
    ]
    if rows:
        parts += ["\n".join([say["speed_head"], "|---" * 8 + "|", *rows]), *_missing(found, say), say["mfu"]]
        parts += _peers(found, say)
    if has_picture:
        parts.append(f"![{say['picture']}]({name}/speed.png)")
    failed = []
    for key, piece in of_device["pieces"].items():
        if piece["state"] == "failed":
            which = [each for each in piece.get("tests", []) if each["state"] == "failed"]
            failed += [f"- {key}: {each['name']}: {_shown(each['why'])}" for each in which] or [
                f"- {key}: {_shown(piece['summary'])}"
            ]
    return [*parts, *([say["failed"] + "\n\n" + "\n".join(failed)] if failed else [])]


def _missing(found: dict[tuple[str, str], dict[str, Any]], say: dict[str, str]) -> list[str]:
    """The cells of the table that nobody has run there."""
    lacking = {
        cell.name: [_TOOL_NAMES[tool] for tool in cell.tools if (cell.name, tool) not in found]
        for cell in cells(small=False)
    }
    named = [f"{cell} ({', '.join(tools)})" for cell, tools in lacking.items() if tools]
    return [say["missing"].format("; ".join(named))] if named else []


def _peers(found: dict[tuple[str, str], dict[str, Any]], say: dict[str, str]) -> list[str]:
    """With which packages the peers ran, and what they lacked."""
    versions = {tool: each["versions"] for (_, tool), each in found.items() if "versions" in each}
    if not versions:
        return []
    peers = [
        say["peer"].format(_TOOL_NAMES[tool], each[tool], f"transformers {each['transformers']}")
        for tool, each in versions.items()
    ]
    lacking = not any("flash-attn" in each for each in versions.values())
    return [say["peers"].format("; ".join(peers)), *([say["no_flash"]] if lacking else [])]


def _speed_row(cell: Cell, tool: str, found: dict[tuple[str, str], dict[str, Any]]) -> str:
    figures = found[cell.name, tool]
    ours = found.get((cell.name, "ascendtune"), {})
    # The work that is needed is that of ours, whoever does it.
    needed = ours["mfu"] * figures["tokens_per_second"] / ours["tokens_per_second"] if ours.get("mfu") else None
    columns = [
        cell.name,
        _TOOL_NAMES[tool],
        f"{figures['tokens_per_second']:,.0f}",
        f"{figures['seconds_per_step']:.2f} s",
        *(f"{each:.1%}" if each is not None else "" for each in (needed, figures["mfu_6n"])),
        *(
            f"{each / 2**30:.1f} GiB" if each else ""
            for each in (figures["memory_peak_bytes"], figures.get("planned_bytes"))
        ),
    ]
    return "| " + " | ".join(columns) + " |"


def draw(found: dict[tuple[str, str], dict[str, Any]], path: Path) -> None:
    """A bar for each cell and tool; nothing where there is no speed or no matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    shown = [cell for cell in cells(small=False) if any(name == cell.name for name, _ in found)]
    if not shown:
        return
    figure = Figure(figsize=(8, 0.6 + 0.7 * len(shown)), layout="constrained")
    axes = figure.subplots()
    for number, tool in enumerate(TOOLS):
        places = [row for row, cell in enumerate(shown) if (cell.name, tool) in found]
        values = [found[shown[row].name, tool]["tokens_per_second"] for row in places]
        axes.barh([row + 0.2 * number for row in places], values, height=0.18, label=_TOOL_NAMES[tool])
    for row, cell in enumerate(shown):
        if cell.target is not None:
            axes.plot([cell.target] * 2, [row - 0.1, row + 0.7], color="black", linestyle=":")
    axes.set_yticks([row + 0.3 for row in range(len(shown))], [cell.name for cell in shown])
    axes.invert_yaxis()
    axes.set_xlabel("tokens/s (dotted: target)")
    axes.legend()
    figure.savefig(path, dpi=120)


def _versions(of_device: dict[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in of_device["device"]["versions"].items() if version)


def _state(piece: dict[str, Any], language: str) -> str:
    return _STATES[piece["state"]] if language == "zh" else str(piece["state"])


def _shown(words: str) -> str:
    """One line that cannot end a table's cell or begin markup."""
    plain = "".join(each if each.isprintable() else " " for each in words)[:200]
    return plain.replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "hardware")
