"""Data sets as people have them, each after a public schema, with that schema's own columns and extra fields."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

_FACTS = [
    ("France", "Paris", "Frankreich"), ("Italy", "Rome", "Italien"), ("Japan", "Tokyo", "Japan"),
    ("Spain", "Madrid", "Spanien"), ("Peru", "Lima", "Peru"), ("Kenya", "Nairobi", "Kenia"),
    ("Norway", "Oslo", "Norwegen"), ("Egypt", "Cairo", "Ägypten"), ("Cuba", "Havana", "Kuba"),
    ("Poland", "Warsaw", "Polen"), ("Greece", "Athens", "Griechenland"), ("Austria", "Vienna", "Österreich"),
]  # fmt: skip


def _json(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps(rows, ensure_ascii=False, indent=2), encoding="utf-8")
    return path


def _jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def _csv(path: Path, rows: list[list[str]], *, delimiter: str = ",", encoding: str = "utf-8") -> Path:
    with path.open("w", encoding=encoding, newline="") as file:
        csv.writer(file, delimiter=delimiter, lineterminator="\r\n").writerows(rows)
    return path


def _alpaca(folder: Path) -> Path:
    rows = [
        {
            "instruction": "Name the capital of the country.",
            "input": country if number % 2 else "",
            "output": f"The capital of {country} is {city}.",
        }
        for number, (country, city, _) in enumerate(_FACTS)
    ]
    return _json(folder / "alpaca_data.json", rows)


def _sharegpt_with_tools(folder: Path) -> Path:
    tool = {
        "name": "get_capital",
        "description": "Get the capital of a country",
        "parameters": {"type": "object", "properties": {"country": {"type": "string"}}, "required": ["country"]},
    }
    rows = [
        {
            "conversations": [
                {"from": "human", "value": f"What is the capital of {country}?"},
                {
                    "from": "function_call",
                    "value": json.dumps({"name": "get_capital", "arguments": {"country": country}}),
                },
                {"from": "observation", "value": json.dumps({"capital": city})},
                {"from": "gpt", "value": f"It is {city}."},
            ],
            "tools": json.dumps([tool]),
        }
        for country, city, _ in _FACTS
    ]
    return _json(folder / "glaive_toolcall.json", rows)


def _openai(folder: Path) -> Path:
    rows = [
        {
            "messages": [
                {"role": "system", "content": "Marv is a factual chatbot that is also sarcastic."},
                {"role": "user", "content": f"What's the capital of {country}?"},
                {"role": "assistant", "content": f"{city}, as if everyone doesn't know that already."},
            ]
        }
        for country, city, _ in _FACTS
    ]
    return _jsonl(folder / "fine-tune.jsonl", rows)


def _turns(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _ultrafeedback(folder: Path) -> Path:
    rows = []
    for number, (country, city, _) in enumerate(_FACTS):
        question = f"What is the capital of {country}?"
        chosen, rejected = _turns(question, f"The capital is {city}."), _turns(question, "I do not know.")
        rows.append(
            {
                "prompt": question,
                "prompt_id": f"{number:064x}",
                "chosen": chosen,
                "rejected": rejected,
                "messages": chosen,
                "score_chosen": 8.5,
                "score_rejected": 4.0,
            }
        )
    return _jsonl(folder / "ultrafeedback_binarized.jsonl", rows)


def _ultrafeedback_scored(folder: Path) -> Path:
    """UltraFeedback as it was collected: four answers with scores, which are equal in one row."""
    rows = []
    for number, (country, city, _) in enumerate(_FACTS):
        scores = (7.0, 8.5, 2.0, 6.0) if number else (5.0, 5.0, 5.0, 5.0)
        texts = ("It is a city.", f"The capital of {country} is {city}.", "No.", f"{city}, I think.")
        completions = [
            {
                "model": f"model-{at}",
                "principle": "helpfulness",
                "custom_system_prompt": "Be helpful.",
                "response": text,
                "annotations": {"helpfulness": {"Rating": "4", "Rationale": "Fine."}},
                "critique": "Good.",
                "overall_score": score,
                "fine-grained_score": score / 2,
            }
            for at, (text, score) in enumerate(zip(texts, scores, strict=True))
        ]
        rows.append(
            {
                "source": "evol_instruct",
                "instruction": f"What is the capital of {country}?",
                "models": [each["model"] for each in completions],
                "completions": completions,
                "correct_answers": ["None"],
                "incorrect_answers": ["None"],
            }
        )
    return _jsonl(folder / "evol_instruct.jsonl", rows)


def _hh_rlhf(folder: Path) -> Path:
    rows = [
        {
            "chosen": f"\n\nHuman: Tell me about {country}.\n\nAssistant: What about it?\n\nHuman: Its capital?"
            f"\n\nAssistant: It is {city}.",
            "rejected": f"\n\nHuman: Tell me about {country}.\n\nAssistant: What about it?\n\nHuman: Its capital?"
            "\n\nAssistant: I will not say.",
        }
        for country, city, _ in _FACTS
    ]
    return _jsonl(folder / "hh-rlhf.jsonl", rows)


def _kto(folder: Path) -> Path:
    rows = [
        {
            "prompt": [{"role": "user", "content": f"What is the capital of {country}?"}],
            "completion": [{"role": "assistant", "content": f"It is {city if number % 2 else 'Atlantis'}."}],
            "label": bool(number % 2),
        }
        for number, (country, city, _) in enumerate(_FACTS)
    ]
    return _jsonl(folder / "kto-mix.jsonl", rows)


def _gsm8k(folder: Path) -> Path:
    rows = [
        {
            "question": f"Weng has {number} apples and buys {number + 2} more. How many apples does she have?",
            "answer": f"{number}+{number + 2}=<<{number}+{number + 2}={2 * number + 2}>>{2 * number + 2} apples.\n"
            f"#### {2 * number + 2}",
        }
        for number in range(12)
    ]
    return _jsonl(folder / "gsm8k_train.jsonl", rows)


def _german_csv(folder: Path) -> Path:
    rows = [
        [str(number), "Erdkunde", f"Was ist die Hauptstadt von {name}?", f"Die Hauptstadt von {name} ist {city}."]
        for number, (_, city, name) in enumerate(_FACTS, 1)
    ]
    return _csv(folder / "fragen.csv", [["ID", "Kategorie", "Frage", "Antwort"], *rows])


def _semicolon_csv(folder: Path) -> Path:
    rows = [
        [f"T-{1000 + number}", f"Guten Tag, wo liegt {city}?", f"Das liegt in {name}, nicht weit; fragen Sie gern!"]
        for number, (_, city, name) in enumerate(_FACTS)
    ]
    header = ["Ticket", "Anfrage des Kunden", "Antwort (Support)"]
    return _csv(folder / "tickets.csv", [header, *rows], delimiter=";", encoding="utf-8-sig")


def _windows_1252_csv(folder: Path) -> Path:
    rows = [
        [f"T-{number}", f"Könnten Sie mir helfen, wo liegt {city}?", f"Natürlich: in {name} – „schön“ dort, ab 5 €."]
        for number, (_, city, name) in enumerate(_FACTS)
    ]
    header = ["Ticket", "Anfrage", "Antwort"]
    return _csv(folder / "excel_german.csv", [header, *rows], delimiter=";", encoding="windows-1252")


def _gbk_csv(folder: Path) -> Path:
    rows = [[f"第{number}个国家的首都是哪里？", "它的首都是一座美丽的城市，欢迎您来。"] for number in range(12)]
    return _csv(folder / "excel_chinese.csv", [["问题", "答案"], *rows], encoding="gbk")


def _csv_without_header(folder: Path) -> Path:
    rows = [
        [str(number), f"What is the capital of {country}?", f"It is {city}, of course."]
        for number, (country, city, _) in enumerate(_FACTS, 1)
    ]
    return _csv(folder / "no_header.csv", rows)


def _excel_tsv(folder: Path) -> Path:
    rows = [
        [
            str(number),
            f"2024-03-{number:02}",
            f"What is the capital of {country}?",
            f"It is {city}.\nAnything else?",
            "",
        ]
        for number, (country, city, _) in enumerate(_FACTS, 1)
    ]
    header = ["No.", "Date", "Customer message", "Agent reply", ""]
    return _csv(folder / "Export Sheet1.tsv", [header, *rows], delimiter="\t", encoding="utf-16")


def _parquet_of_messages(folder: Path) -> Path:
    import pyarrow
    import pyarrow.parquet

    rows = [
        {
            "prompt": f"What is the capital of {country}?",
            "prompt_id": f"{number:064x}",
            "messages": _turns(f"What is the capital of {country}?", f"It is {city}."),
            "category": "Open QA",
        }
        for number, (country, city, _) in enumerate(_FACTS)
    ]
    path = folder / "train-00000-of-00001.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def _markdown_folder(folder: Path) -> Path:
    handbook = folder / "handbook"
    (handbook / "countries").mkdir(parents=True)
    (handbook / "README.md").write_text("# Handbook\n\nHow to read these pages.\n", encoding="utf-8")
    for country, city, _ in _FACTS:
        text = f"# {country}\n\nThe capital of {country} is **{city}**.\n\n- Go there.\n- Stay a while.\n"
        (handbook / "countries" / f"{country.lower()}.md").write_text(text, encoding="utf-8")
    return handbook


def _openai_preferences(folder: Path) -> Path:
    rows = [
        {
            "input": {"messages": [{"role": "user", "content": f"What is the capital of {country}?"}], "tools": []},
            "preferred_output": [{"role": "assistant", "content": f"It is {city}."}],
            "non_preferred_output": [{"role": "assistant", "content": "Who knows."}],
        }
        for country, city, _ in _FACTS
    ]
    return _jsonl(folder / "preferences.jsonl", rows)


def _gemini(folder: Path) -> Path:
    rows = [
        {
            "systemInstruction": {"role": "system", "parts": [{"text": "Answer briefly."}]},
            "contents": [
                {"role": "user", "parts": [{"text": f"What is the capital of {country}?"}]},
                {"role": "model", "parts": [{"text": f"It is {city}."}]},
            ],
        }
        for country, city, _ in _FACTS
    ]
    return _jsonl(folder / "tuning.jsonl", rows)


def _bedrock(folder: Path) -> Path:
    rows = [
        {
            "schemaVersion": "bedrock-conversation-2024",
            "system": [{"text": "Answer briefly."}],
            "messages": [
                {"role": "user", "content": [{"text": f"What is the capital of {country}?"}]},
                {"role": "assistant", "content": [{"text": f"It is {city}."}]},
            ],
        }
        for country, city, _ in _FACTS
    ]
    return _jsonl(folder / "nova.jsonl", rows)


def _lima(folder: Path) -> Path:
    rows = [
        {"conversations": [f"What is the capital of {country}?", f"It is {city}."], "source": "stackexchange"}
        for country, city, _ in _FACTS
    ]
    return _jsonl(folder / "lima.jsonl", rows)


FILES: dict[str, Callable[[Path], Path]] = {
    "alpaca": _alpaca,
    "sharegpt_with_tools": _sharegpt_with_tools,
    "openai": _openai,
    "ultrafeedback": _ultrafeedback,
    "ultrafeedback_scored": _ultrafeedback_scored,
    "hh_rlhf": _hh_rlhf,
    "kto": _kto,
    "gsm8k": _gsm8k,
    "german_csv": _german_csv,
    "semicolon_csv": _semicolon_csv,
    "windows_1252_csv": _windows_1252_csv,
    "gbk_csv": _gbk_csv,
    "csv_without_header": _csv_without_header,
    "excel_tsv": _excel_tsv,
    "parquet_of_messages": _parquet_of_messages,
    "markdown_folder": _markdown_folder,
    "openai_preferences": _openai_preferences,
    "gemini": _gemini,
    "bedrock": _bedrock,
    "lima": _lima,
}
"""Name -> the function that writes the file or folder into a directory and returns its path."""
