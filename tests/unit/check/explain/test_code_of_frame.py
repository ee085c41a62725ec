"""Facts from a frame and its line of code: the package, the value that was None, the table without the key."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.written_trace import written_trace

from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.traceback.code_of_frame import argument_of, looked_up_in, none_in, table_in
from ascendtune.check.explain.traceback.package_of_frame import package_in

_NOT_INTEGER = "int() argument must be a string, a bytes-like object or a real number, not 'NoneType'"
_NOT_PATH = "expected str, bytes or os.PathLike object, not NoneType"
_NOT_UNPACKED = "cannot unpack non-iterable NoneType object"


@pytest.mark.parametrize(
    ("files", "package"),
    [
        (["/usr/lib/python3.11/site-packages/moon/rise.py"], "moon"),
        (["/home/me/train.py", "/opt/dist-packages/tide/sea.py"], "tide"),
        (["/home/me/src/moon/rise.py"], "moon"),
        (["/home/me/src/trainer/rise.py"], ""),
        (["/home/me/moon/moon/rise.py"], "moon"),
        (["C:\\me\\venv\\lib\\site-packages\\moon\\rise.py"], "moon"),
        (["/home/me/moon/train.py"], ""),
        (["/home/me/Moon-Sea/moon_sea/rise.py"], "moon_sea"),
        (["/home/me/tides/vllm_ascend/rise.py"], "vllm_ascend"),
        (["/opt/site-packages/moon/rise.py", "/opt/site-packages/torch/_ops.py"], "moon"),
        ([], ""),
    ],
)
def test_package_of_the_innermost_frame(files: list[str], package: str) -> None:
    assert package_in([(file, 7, "step") for file in files]) == package


@pytest.mark.parametrize(
    ("files", "package"),
    [
        (["/opt/site-packages/tide/a.py", "/opt/site-packages/moon/b.py", "/opt/site-packages/moon/c.py"], "tide"),
        (["/home/me/train.py", "/opt/site-packages/moon/b.py"], ""),
        (["/opt/site-packages/moon/b.py"], ""),
    ],
)
def test_caller_of_a_library_that_passes_arguments_on_is_outside_of_it(files: list[str], package: str) -> None:
    assert package_in([(file, 7, "step") for file in files], "moon") == package


def test_importer_of_an_unknown_argument_is_not_the_library_itself(explained: Callable[..., Explanation]) -> None:
    frames = ("/opt/site-packages/trl/cli.py", "/opt/site-packages/vllm/llm.py")
    trace = "".join(f'  File "{file}", line 7, in main\n    moon()\n' for file in frames)
    error = "TypeError: EngineArgs.__init__() got an unexpected keyword argument 'worker_extension_cls'\n"

    remedies = explained(f"Traceback (most recent call last):\n{trace}{error}").remedies()

    assert "pip show vllm trl" in remedies[0] and "release of trl" in remedies[1]


def test_the_method_that_says_that_a_module_lacks_an_attribute_is_not_who_asked() -> None:
    frames = [
        ("/opt/site-packages/moon/rise.py", 7, "forward"),
        ("/opt/site-packages/torch/nn/modules/module.py", 1931, "__getattr__"),
    ]

    assert package_in(frames) == "moon"


@pytest.mark.parametrize(
    ("code", "message", "value"),
    [
        ("tide = moon.sea.height", "'NoneType' object has no attribute 'height'", "moon.sea"),
        ("tide = getattr(moon, 'height')", "'NoneType' object has no attribute 'height'", "moon"),
        ("tide = moon(7)[0]", "'NoneType' object is not subscriptable", "moon(7)"),
        ("tide = 7", "'NoneType' object has no attribute 'height'", ""),
        ("tide = len(moon.seas)", "object of type 'NoneType' has no len()", "moon.seas"),
        ("tide = len(moons) + len(seas)", "object of type 'NoneType' has no len()", ""),
        ("if tide not in moon.seas:", "argument of type 'NoneType' is not iterable", "moon.seas"),
        ("[x for x in moons if x in seas]", "argument of type 'NoneType' is not iterable", "seas"),
        ("for tide in moon.seas:", "'NoneType' object is not iterable", "moon.seas"),
        ("return [x for sea in moons for x in sea]", "'NoneType' object is not iterable", "moons or an entry of it"),
        ("return [x for x in moons for y in seas]", "'NoneType' object is not iterable", ""),
        ("tide = moon.mass / sea", "unsupported operand type(s) for /: 'int' and 'NoneType'", "sea"),
        ("return moons[7] // n - 1", "unsupported operand type(s) for //: 'NoneType' and 'int'", "moons[7]"),
        ("tide += moon.mass", "unsupported operand type(s) for +=: 'int' and 'NoneType'", "moon.mass"),
        ("tide = a * b * c", "unsupported operand type(s) for *: 'int' and 'NoneType'", ""),
        ("elif tide <= moon.height:", "'<=' not supported between instances of 'float' and 'NoneType'", "moon.height"),
        ("tide = rise(moon >= sea,", "'>=' not supported between instances of 'NoneType' and 'int'", ""),
        ("element = moon - 1", "unsupported operand type(s) for -: 'NoneType' and 'int'", "moon"),
        ("tide = moon ** 2", "unsupported operand type(s) for ** or pow(): 'NoneType' and 'int'", "moon"),
        (
            "tide = moon**" + "(" * 99 + "1" + ")" * 99,
            "unsupported operand type(s) for ** or pow(): 'NoneType' and 'int'",
            "",
        ),
        ("tide = " + "moon + " * 30 + "1", "unsupported operand type(s) for +: 'NoneType' and 'int'", ""),
        (r"tide = r('\d') + sea", "unsupported operand type(s) for +: 'int' and 'NoneType'", "sea"),
        ("tide = -moon.mass", "bad operand type for unary -: 'NoneType'", "moon.mass"),
        ("rise(k=moon.tide, n=7)", "for argument 'k' but instead found type 'NoneType'", "moon.tide"),
    ],
)
def test_value_that_was_none(code: str, message: str, value: str) -> None:
    assert none_in(code, message) == value


@pytest.mark.parametrize(
    ("code", "message", "table"),
    [
        ("tide = MOONS[name]", "'io'", "MOONS"),
        ("tide = moons['io'] + seas['blue']", "'io'", "moons"),
        ("tide = moons[a] + seas[b]", "'io'", ""),
        ("tide = moons.pop(name)", "'io'", ""),
    ],
)
def test_table_without_the_key(code: str, message: str, table: str) -> None:
    assert table_in(code, message) == table


@pytest.mark.parametrize(
    ("name", "call", "argument"),
    [
        ("moons", "tide = rise(self.seas)", "self.seas"),
        ("moons or an entry of it", "tide = rise(seas)", "seas or an entry of it"),
        ("moons", "tide = rise(seas, 7)", "moons"),
        ("moons", "tide = fall(seas)", "moons"),
        ("moon.seas", "tide = rise(seas)", "moon.seas"),
    ],
)
def test_argument_that_a_caller_passes(name: str, call: str, argument: str) -> None:
    assert argument_of(name, "rise", call) == argument


@pytest.mark.parametrize(
    ("marked", "table"), [("moons[at]", "moons"), ("moon.tides[7]", "moon.tides"), ("rise(7)", ""), ("", "")]
)
def test_table_that_python_underlines(marked: str, table: str) -> None:
    assert looked_up_in(marked) == table


@pytest.mark.parametrize(
    ("marks", "table"),
    [
        ("    ~~~~~^^^^\n", "moons"),
        ("                ~~~~^^^^\n", "seas"),
        ("    ^^^^^^^^^^^^^^^^^^^^\n", ""),
        ("", ""),
    ],
)
def test_headline_names_the_array_that_python_underlines(
    explained: Callable[..., Explanation], marks: str, table: str
) -> None:
    explanation = explained(
        'Traceback (most recent call last):\n  File "/home/me/train.py", line 12, in step\n'
        f"    moons[at] = seas[at]\n{marks}IndexError: index 7 is out of bounds for axis 0 with size 7\n"
    )

    assert (f"({table})" in explanation.headline()) is bool(table)


def test_headline_names_what_the_operator_was_given(explained: Callable[..., Explanation]) -> None:
    explanation = explained(
        'Traceback (most recent call last):\n  File "/home/me/train.py", line 12, in step\n    npu_rise(k=moon.tide)\n'
        '  File "/opt/site-packages/torch/_ops.py", line 7, in __call__\n    return self._op(*args, **kwargs)\n'
        "RuntimeError: npu::npu_rise() Expected a value of type 'int' for argument 'k' but instead found type "
        "'NoneType'.\n"
    )

    assert "(moon.tide)" in explanation.headline()


def test_headline_names_the_table_that_lacks_the_key(explained: Callable[..., Explanation]) -> None:
    explanation = explained(
        "Traceback (most recent call last):\n"
        '  File "/home/me/train.py", line 12, in step\n'
        '    tide = TIDES["tide_level"]\n'
        "KeyError: 'tide_level'\n"
    )

    assert "TIDES" in explanation.headline() and "tide_level" in explanation.headline()


@pytest.mark.parametrize(("file", "of_package"), [("/home/me/train.py", False), ("/opt/site-packages/tide/a.py", True)])
def test_remedy_for_the_owner_of_the_innermost_frame_comes_first(
    explained: Callable[..., Explanation], file: str, of_package: bool
) -> None:
    explanation = explained(
        "Traceback (most recent call last):\n"
        f'  File "{file}", line 12, in step\n'
        "    moon.rise()\n"
        "AttributeError: 'Moon' object has no attribute 'rise'. Did you mean: 'raise'?\n"
    )

    assert explanation.remedies()[0].startswith(
        "`grep -rnE 'class Moon|self.rise ='" if of_package else "code of your own"
    )
    assert not any("Did you mean" in remedy for remedy in explanation.remedies())


@pytest.mark.parametrize(
    ("code", "error", "headline"),
    [
        (
            "tide = next(self.moon.parameters()).dtype",
            "StopIteration",
            "self.moon.parameters() is empty: the module has no",
        ),
        ("tide = next(sea.glob('*.so'))", "StopIteration", "takes the first one: sea.glob('*.so')"),
        ("tide = next(self.tides)", "StopIteration", "self.tides has no next value"),
        ("return tides[-1]", "IndexError: list index out of range", "a list (tides) is shorter"),
        ("return tides['moon'][7]", "IndexError: list index out of range", "a list (tides['moon']) is shorter"),
        ("return tides[7][8]", "IndexError: list index out of range", "a list is shorter"),
        ("self.tides.pop()", "IndexError: pop from empty list", "a list (self.tides) is shorter"),
        (
            "loss, moon = self.rise(tide)",
            "ValueError: too many values to unpack (expected 2)",
            "self.rise(tide) gives another number of values than the 2",
        ),
        (
            "for moon, tide in seas:",
            "ValueError: not enough values to unpack (expected 2, got 1)",
            "an entry of seas gives another number of values (1) than the 2",
        ),
        (
            "torch.full((2, 3), moon.tide)",
            "TypeError: full(): argument 'fill_value' (position 2) must be Number, not NoneType",
            "None was used where a value was expected (moon.tide)",
        ),
        ("low, high = self.tide", f"TypeError: {_NOT_UNPACKED}", "self.tide gave nothing (None) where a pair"),
        ("cos, sin = position_embeddings", f"TypeError: {_NOT_UNPACKED}", "called without position_embeddings"),
        ("n = int(sea.get('tide'))", f"TypeError: {_NOT_INTEGER}", "(sea.get('tide'))"),
        ("range(moon.tides)", "TypeError: 'NoneType' object cannot be interpreted as an integer", "(moon.tides)"),
        ("s = 'moon' + tide", 'TypeError: can only concatenate str (not "NoneType") to str', "(tide)"),
        ("os.path.join(sea, 'moon')", f"TypeError: {_NOT_PATH}", "(sea)"),
        ("os.path.join(sea, moon)", f"TypeError: {_NOT_PATH}", "a path is None"),
        ("assert moon is not None, tide(", "AssertionError", "Python failed with AssertionError: assert moon"),
        (
            "assert moon is not None, 'tide'",
            "AssertionError",
            "an assertion failed (in rise): moon is not None does not",
        ),
        ("raise NotImplementedError", "NotImplementedError", "option does not have was called (rise)"),
    ],
)
def test_code_of_a_frame_says_what_was_looked_for(
    explained: Callable[..., Explanation], code: str, error: str, headline: str
) -> None:
    assert headline in explained(written_trace(error, ("/me/tide.py", code))).headline()


@pytest.mark.parametrize(
    "methods",
    ["with abstract method rise", "without an implementation for abstract methods 'rise', 'set'"],
)
def test_abstract_class_that_lacks_a_method_of_a_newer_base(
    explained: Callable[..., Explanation], methods: str
) -> None:
    error = f"TypeError: Can't instantiate abstract class NPUTide {methods}"
    own = explained(written_trace(error.replace("NPUTide", "Tide"), ("/me/tide.py", "Tide()")))
    vllm = explained(written_trace(error, ("/w/vllm/vllm/v1/worker/moon.py", "self.tide = tide_class()")))

    assert own.headline().startswith("Tide does not define ") and "define" in own.remedies()[0]
    assert "vllm-ascend is older than vllm" in vllm.headline()
    assert "pip install vllm-ascend==VERSION vllm==VERSION" in vllm.remedies()[0]


def test_path_that_is_none_is_named_as_the_caller_of_os_path_names_it(explained: Callable[..., Explanation]) -> None:
    log = written_trace(
        f"TypeError: {_NOT_PATH}",
        ("/me/tide.py", "path = os.path.join(args.moon_dir, 'config.json')"),
        ("/usr/lib/python3.10/posixpath.py", "a = os.fspath(a)"),
    )

    assert "(args.moon_dir)" in explained(log).headline()
