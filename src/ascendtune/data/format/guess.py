"""Guesses the columns with question and answer, from their names (in several languages) and values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ascendtune.data.format.scored import is_scored
from ascendtune.data.format.turns import is_text, listed
from ascendtune.data.format.unpaired import LABEL_WORDS
from ascendtune.data.spec import Task

Role = Literal["question", "answer", "chosen", "rejected", "label", "system", "context", "text"]

# Words of column names, in lower case. Languages: English, German, French, Spanish, Portuguese, Italian, Dutch,
# Russian, Romanian, Polish, Czech, Turkish, Scandinavian, Finnish, Indonesian, Arabic, Chinese, Japanese, Korean.
_NAMES: dict[Role, str] = {
    "question": """
        question questions query prompt instruction instructions user human customer request ask asked input inputs
        source problem task message inquiry enquiry q src
        frage fragen kundenfrage fragetext anfrage kundenanfrage problembeschreibung aufgabe anweisung kunde kunden
        nutzer eingabe
        demande requête consigne client pregunta preguntas consulta instrucción pergunta instrução domanda richiesta
        istruzione vraag opdracht вопрос запрос инструкция
        întrebare intrebare pytanie otázka otazka soru fråga spørgsmål kysymys pertanyaan سؤال
        问题 提问 问 指令 输入 用户 题目 問題 質問 入力 指示 질문 지시 입력""",
    "answer": """
        answer answers response responses reply replies completion output assistant bot gpt agent target targets
        solution result resolution a tgt generation
        antwort antworten antworttext lösung loesung lösungsvorschlag loesungsvorschlag ausgabe erwiderung
        réponse reponse sortie respuesta respuestas solución resposta saída risposta soluzione antwoord
        ответ ответы решение
        răspuns raspuns odpowiedź odpowiedz odpověď odpoved cevap yanıt svar vastaus jawaban جواب إجابة
        答案 回答 答 答复 回复 输出 解答 出力 応答 대답 답변 출력 응답""",
    "chosen": """
        chosen preferred good better best accepted accept winner win positive pos gut gute besser bevorzugt bon
        meilleur bueno mejor bom melhor buono migliore хороший лучший 好 优 更好 良い 採用 좋은""",
    "rejected": """
        rejected dispreferred bad worse worst refused reject loser lose negative neg schlecht schlechte schlechter
        abgelehnt mauvais pire malo peor mau ruim pior cattivo peggiore плохой худший 差 坏 劣 更差 悪い 不採用 나쁜""",
    "label": "label kto_tag tag feedback thumbs liked desirable is_good ok bewertung 标签 评价",
    "system": "system system_prompt persona systemprompt 系统",
    "context": "context passage background kontext contexte contexto contesto 上下文 背景",
    "text": """
        text texts content body document article passage inhalt texto texte testo tekst текст 文本 内容 正文 本文""",
}
_WORDS = {role: frozenset(names.split()) for role, names in _NAMES.items()}
_LETTERS = re.compile(r"[^\W\d_]+")
_CAMEL = re.compile(r"(?<=[a-zäöüß])(?=[A-Z])")
_IDENTIFIER = re.compile(r"(?=\D*\d)[\w\-./:#+]+|[0-9a-f]{8,}(-[0-9a-f]{4,})*")
_DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}([ T]\d{1,2}:\d{2}.*)?")
_URL = re.compile(r"https?://\S+")
_CONVERSATIONS = ("conversation", "dialog", "dialogue", "dialogs", "dialogues", "turns", "utterances", "chat", "chats")
_GEMINI_SYSTEM = ("systemInstruction", "system_instruction")
_NUMBERED = re.compile(r"[ _-]?((?<!\d)\d+|(?<=[ _-])[a-zA-Z])$")
_LANGUAGE = re.compile(r"[a-z]{2,3}([_-][A-Za-z]{2,4})*")
_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?")
_SENTENCE_ENDS = (".", "!", "…", "。", "！")
_SHORT_SENTENCE = 5
_MOST_WORDS = 4
"""Including the whole name, which counts as a word."""
_MOST = 0.8
_QUESTION_MARKS = ("?", "？", "؟")
_NAMED = 3.0
_QUESTIONS = 1.0
_LONG = 0.5
_CERTAIN = 2.0
_PARTIAL = 1.5
_PARTS_OF_A_QUESTION = frozenset({"input", "source", "src", "task", "user", "customer"})
"""Names that often occur beside the question itself."""
_EARLIER = frozenset({"original", "orig", "raw", "old"})
"""Words in the names of columns that another column replaces by its final form."""
_CHOICES = frozenset({"choices", "options", "endings", "candidates", "选项"})
_FEW_VALUES = 0.2
_MOST_VALUES = 200
_DEEPEST = 3
"""Objects within objects."""


@dataclass(frozen=True)
class Guess:
    """A likely use of a data set."""

    task: Task
    format: str
    columns: dict[str, str]
    """Name in the format -> column."""
    certain: bool
    """Whether the names of the columns indicate this use, and their values do not contradict."""


@dataclass(frozen=True)
class _Column:
    name: str
    values: list[Any]

    @property
    def words(self) -> frozenset[str]:
        """Words of the name: `Antwort (Support)` -> antwort, support; `userPrompt` -> user, prompt."""
        whole = self.name.strip().lower()
        return frozenset({whole, *(word.lower() for word in _LETTERS.findall(_CAMEL.sub(" ", self.name)))})

    @property
    def texts(self) -> list[str]:
        return [value.strip() for value in self.values if isinstance(value, str) and value.strip()]

    def is_prose(self) -> bool:
        """Whether its values are texts, and not numbers, dates, links or identifiers."""
        return self.is_mostly_filled() and self.is_prose_where_filled()

    def is_mostly_filled(self) -> bool:
        return len(self.texts) * 2 >= max(1, len(self.values))

    def is_prose_where_filled(self) -> bool:
        """`is_prose` for a column that may be empty in most rows: not every question has a passage."""
        texts = self.texts
        return sum(map(_is_prose, texts)) > 0.5 * len(texts)

    def contains_turns(self) -> bool:
        """Whether its values are lists of messages."""
        are_turns = [isinstance(value, list) and _are_turns(value, "role", "content") for value in self.values]
        return bool(are_turns) and all(are_turns)

    def contains_objects(self) -> bool:
        return any(isinstance(value, list | dict) for value in self.values)

    def is_truth(self) -> bool:
        return bool(self.values) and all(_is_truth(value) for value in self.values)

    def share_of_questions(self) -> float:
        texts = self.texts
        return sum(text.endswith(_QUESTION_MARKS) for text in texts) / max(1, len(texts))

    def mean_length(self) -> float:
        """Mean length in characters."""
        texts = self.texts
        return sum(map(len, texts)) / max(1, len(texts))

    def distinct(self) -> float:
        """Share of values that differ from all earlier ones, from 0 to 1."""
        texts = self.texts
        return len(set(texts)) / max(1, len(texts))

    def is_named(self, role: Role) -> bool:
        return not _WORDS[role].isdisjoint(self.words)


def _is_prose(text: str) -> bool:
    return not _is_truth(text) and not any(pattern.fullmatch(text) for pattern in (_IDENTIFIER, _DATE, _URL))


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in LABEL_WORDS)


def guess(rows: Sequence[Mapping[str, Any]]) -> Guess | None:
    """The likeliest use of a data set whose columns match no known format; None if no column has text.

    A column is never taken for a question or an answer if its values are numbers, dates, links or identifiers.

    Args:
        rows: the first rows.
    """
    rows = rows[:_MOST_VALUES]
    columns = _columns_of(rows)
    if meaning := _whole_conversations(columns) or _inside(columns):
        return meaning
    if choices := _choices(columns):
        likely = guess([{name: value for name, value in row.items() if name not in choices} for row in rows])
        return replace(likely, certain=False) if likely else None
    if not any(column.is_prose() for column in columns):
        inner = [flattened(row) for row in rows]
        likely = guess(inner) if inner != list(rows) else None
        # A single text among the values of an object may be a name instead of the row's content.
        return likely if likely and likely.format != "text" else None
    # A column called answer may contain numbers.
    prose = [each for each in columns if each.is_prose() or (each.is_named("answer") and each.is_mostly_filled())]
    if pair := _two_answers(prose):
        return pair
    if len(prose) == 1 and not any(each.is_named("question") and each.contains_turns() for each in columns):
        return _guess("text", "text", {"text": prose[0]}, certain=prose[0].is_named("text"))
    return _question_and_answer(columns, prose)


def _columns_of(rows: Sequence[Mapping[str, Any]]) -> list[_Column]:
    names = dict.fromkeys(name for row in rows for name in row)
    return [_Column(name, [row.get(name) for row in rows]) for name in names]


def _whole_conversations(columns: Sequence[_Column]) -> Guess | None:
    """A column whose values are whole conversations."""
    for column in columns:
        if column.name == "contents" and all(_are_turns(each, "parts") for each in column.values):
            # Gemini's.
            system = next((each for each in columns if each.name in _GEMINI_SYSTEM), None)
            return _guess("conversations", "messages", {"messages": column, "system": system}, certain=True)
        if column.name.strip().lower() in _CONVERSATIONS and (
            all(map(_are_turns, column.values)) or all(map(_are_said_in_turn, column.values))
        ):
            return _guess("conversations", "sharegpt", {"conversations": column}, certain=True)
    return None


def _choices(columns: Sequence[_Column]) -> set[str]:
    """Columns with the choices of a multiple-choice question: neither answers nor part of the prompt."""
    letters = {each.name for each in columns if each.name.strip().upper() in tuple("ABCDEFGH")}
    named = {each.name for each in columns if not _CHOICES.isdisjoint(each.words)}
    return letters | named if len(letters) > 2 or named else set()


def flattened(row: Mapping[str, Any], depth: int = _DEEPEST) -> dict[str, Any]:
    """The row with the values of its objects under their paths, `column.key`."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping) and depth:
            inner = flattened(value, depth - 1)
            flat |= {f"{name}.{key}": each for key, each in inner.items()}
        else:
            flat[name] = value
    return flat


def _are_said_in_turn(value: Any) -> bool:
    """Whether the value is a list of two or more texts, as DailyDialog writes conversations."""
    texts = listed(value)
    return isinstance(texts, list) and len(texts) > 1 and all(map(is_text, texts))


def _inside(columns: Sequence[_Column]) -> Guess | None:
    """A use of values inside a column: answers with ranks, a list of answers under `text`, two languages."""
    question = _best_question([each for each in columns if each.is_prose()], used=())
    for column in columns:
        values = [listed(value) for value in column.values]
        if question and column.is_named("answer") and values and all(map(is_scored, values)):
            columns_used = {"prompt": question, "completions": column}
            return _guess("pairs", "scored", columns_used, certain=question.is_named("question"))
        if question and column.is_named("answer") and values and all(map(_contains_texts, values)):
            # SQuAD's: several variants of one answer, with their positions in the context.
            context = [each for each in columns if each.is_named("context") and each.is_prose_where_filled()]
            words = {"instruction": question.name, "output": f"{column.name}.text.0"}
            with_context = {"input": context[0].name} if context else {}
            return Guess("conversations", "alpaca", words | with_context, certain=question.is_named("question"))
        if values and (pair := _two_languages(values)):
            words = {"prompt": f"{column.name}.{pair[0]}", "completion": f"{column.name}.{pair[1]}"}
            return Guess("conversations", "prompt_completion", words, certain=False)
    return None


def _contains_texts(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("text"), list) and all(map(is_text, value["text"]))


def _two_languages(values: Sequence[Any]) -> tuple[str, str] | None:
    """The two language codes under which every value has a text. The user must decide the direction."""
    keys = [*values[0]] if isinstance(values[0], dict) else []
    if len(keys) != 2 or not all(map(_LANGUAGE.fullmatch, keys)):
        return None
    same = all(isinstance(each, dict) and [*each] == keys and all(map(is_text, each.values())) for each in values)
    return (keys[0], keys[1]) if same else None


def _are_turns(value: Any, *keys: str) -> bool:
    """Whether the value is a list of objects that have `keys`."""
    turns = listed(value)
    return (
        isinstance(turns, list) and bool(turns) and all(isinstance(each, dict) and {*keys} <= {*each} for each in turns)
    )


def names_columns(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the keys of the rows, the first line of a table, are names of columns, not a row.

    They are a row if one is a number in a column of numbers, or a sentence or question among such, and none describes
    its column or is above values of another kind.
    """
    columns = _columns_of(rows[:_MOST_VALUES])
    short = [each for each in columns if len(each.words) <= _MOST_WORDS and _ending(each.name) is None]
    if any(each.is_named(role) for each in short for role in _WORDS):
        return True
    if any(_is_unlike_its_values(each) for each in columns):
        return True
    return not any(_is_like_its_values(each) for each in columns)


def _is_unlike_its_values(column: _Column) -> bool:
    """Whether the values are numbers, dates, links or identifiers, and the name is not."""
    texts = column.texts
    return _is_prose(column.name.strip()) and sum(map(_is_prose, texts)) <= (1 - _MOST) * len(texts) and bool(texts)


def _is_like_its_values(column: _Column) -> bool:
    name, texts = column.name.strip(), column.texts
    if not texts:
        return False
    if _NUMBER.fullmatch(name):
        return sum(bool(_NUMBER.fullmatch(text)) for text in texts) >= _MOST * len(texts)
    ending = _ending(name)
    same = sum(_ending(text) == ending for text in texts)
    return ending is not None and len(name) > _SHORT_SENTENCE and same >= _MOST * len(texts)


def _ending(text: str) -> str | None:
    """`?` for a question, `.` for a sentence, None for other text."""
    end = text.strip()[-1:]
    return "?" if end in _QUESTION_MARKS else "." if end in _SENTENCE_ENDS else None


def _two_answers(prose: Sequence[_Column]) -> Guess | None:
    """A question with a better and a worse answer."""
    bad = [column for column in prose if column.is_named("rejected")]
    good = [column for column in prose if column.is_named("chosen")]
    if bad and not good:
        # ms-swift's rejected_response occurs beside response.
        good = [each for each in prose if each.is_named("answer") and each.words < bad[0].words]
    question = _best_question(prose, used=(good[0], bad[0])) if good and bad else None
    if question is None:
        return None
    columns_used = {"prompt": question, "chosen": good[0], "rejected": bad[0]}
    return _guess("pairs", "preference", columns_used, certain=question.is_named("question"))


def _question_and_answer(columns: Sequence[_Column], prose: Sequence[_Column]) -> Guess | None:
    answers = [each for each in prose if each.is_named("answer")]
    if not any(each.is_named("question") for each in columns):
        # `a` is an answer beside `q`; beside `b` it is the first letter.
        answers = [each for each in answers if not each.words & _WORDS["answer"] <= {"a"}]
    named = max(answers, key=_answer_score, default=None)
    turns = [each for each in columns if each.is_named("question") and each.contains_turns()]
    question = turns[0] if turns else _best_question(prose, used=(named,) if named else ())
    if question is None:
        return None
    others = [each for each in prose if each is not question and not each.is_named("context")]
    answer = named or max(others, key=_answer_score, default=None)
    if answer is None:
        return None
    certain = (
        named is not None
        and question.is_named("question")
        # The question is in none of the columns that are read.
        and not question.is_named("system")
        and not _has_rival(named, prose)
        # No format adds lists of passages to a prompt.
        and not any(each.is_named("context") and each.contains_objects() for each in columns)
    )
    labels = [each for each in columns if each.is_named("label") and each.is_truth()]
    if labels:
        pair = {"prompt": question, "completion": answer}
        return _guess("singles", "unpaired", {**pair, "label": labels[0]}, certain=certain)
    filled = [each for each in columns if each not in (question, answer) and each.is_prose_where_filled()]
    context = next((each for each in filled if each.is_named("context")), None)
    if context is None and question.name.strip().lower() == "instruction":
        context = next((each for each in columns if each.name.strip().lower() == "input" and each.texts), None)
    system = next((each for each in filled if each.is_named("system")), None)
    name, words = "prompt_completion", ("prompt", "completion")
    # Earlier turns: alpaca reads a column `history`.
    if context or any(each.name == "history" for each in columns):
        name, words = "alpaca", ("instruction", "output")
    columns_used = {words[0]: question, "input": context, words[1]: answer, "system": system}
    return _guess("conversations", name, columns_used, certain=certain)


def _has_rival(answer: _Column, prose: Sequence[_Column]) -> bool:
    """Whether another column has the same name except for a number or letter at its end: output_1 and output_2."""
    stem = _NUMBERED.sub("", answer.name)
    return any(_NUMBERED.sub("", each.name) == stem != each.name for each in prose if each is not answer)


def _best_question(prose: Sequence[_Column], used: Sequence[_Column]) -> _Column | None:
    """The likeliest question: by name, then by question marks, then the first column with values that differ."""
    free = [column for column in prose if column not in used and column.is_prose()]
    return max(free, key=_question_score, default=None)


def _question_score(column: _Column) -> float:
    other = any(column.is_named(each) for each in ("system", "context", "label"))
    return (
        _NAMED * column.is_named("question")
        - _NAMED * other * (not column.is_named("question"))
        + _QUESTIONS * column.share_of_questions()
        - _CERTAIN * (column.distinct() < _FEW_VALUES)
        - _PARTIAL * (column.words <= _PARTS_OF_A_QUESTION or not column.words.isdisjoint(_EARLIER))
    )


def _answer_score(column: _Column) -> float:
    """Longer texts that differ from row to row are likelier answers."""
    length = min(1.0, column.mean_length() / 1000)
    return (
        _NAMED * column.is_named("answer")
        + _LONG * length
        + column.distinct()
        - _QUESTIONS * column.share_of_questions()
        - _PARTIAL * (not column.words.isdisjoint(_EARLIER))
    )


def _guess(task: Task, name: str, columns: Mapping[str, _Column | None], *, certain: bool) -> Guess:
    return Guess(task, name, {word: column.name for word, column in columns.items() if column}, certain)
