"""A job around which real libraries complain, and which goes well: python warned_job.py WORD … (names of functions)."""

from __future__ import annotations

import asyncio
import importlib
import logging
import multiprocessing
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.request
import warnings

_LOG = logging.getLogger("job")


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for word in sys.argv[1:]:
        globals()[word]()
        for step in range(8):
            print(f"step {step}: loss {2 - step / 9 - len(word) / 50:.4f}", flush=True)
    print("finished")


def optional_imports() -> None:
    for name in ("flash_attn", "apex", "xformers", "bitsandbytes"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            _LOG.warning("%s is not available (%s), using the slow path", name, error)


def probes() -> None:
    """Commands of tools that are not on this machine, asked by a shell."""
    subprocess.run("nvidia-smi || echo no GPU, using the CPU; which npu-smi; nvcc --version", shell=True, check=False)
    subprocess.run("git rev-parse HEAD || true", shell=True, check=False, cwd="/")


def caught() -> None:
    """An exception that is logged with its traceback, after which the next try succeeds."""
    try:
        socket.create_connection(("127.0.0.1", 1), 1)
    except OSError:
        _LOG.exception("could not reach the metrics server, going on without it")
    try:
        {}["moon"]
    except KeyError:
        traceback.print_exc()


def of_thread() -> None:
    """An exception that ends a helper's thread."""

    def upload() -> None:
        urllib.request.urlopen("http://127.0.0.1:1/metrics", timeout=1)

    thread = threading.Thread(target=upload, name="uploader")
    thread.start()
    thread.join()


def of_pool() -> None:
    """One item of a pool fails, and is left out."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        answers = [pool.apply_async(int, (text,)) for text in ("1", "x", "3")]
        for answer in answers:
            try:
                answer.get(10)
            except ValueError:
                _LOG.warning("bad row is left out", exc_info=True)


def of_asyncio() -> None:
    async def fails() -> None:
        raise ConnectionResetError("connection lost")

    async def forgets() -> None:
        task = asyncio.create_task(fails())
        await asyncio.sleep(0.05)
        del task

    asyncio.run(forgets(), debug=True)


def of_destructor() -> None:
    class Handle:
        def __del__(self) -> None:
            raise AttributeError("'NoneType' object has no attribute 'close'")

    Handle()


def of_torch() -> None:
    import torch

    warnings.simplefilter("always")
    leaf = torch.ones(3, requires_grad=True) * 2
    _ = leaf.grad
    torch.tensor(torch.ones(2))
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1).step()
    torch.utils.data.DataLoader([1, 2], num_workers=64, pin_memory=True)
    torch.nn.functional.mse_loss(torch.ones(2, 1), torch.ones(2))
    with torch.autocast("cuda"):
        pass
    torch.jit.script(torch.nn.Linear(1, 1))
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(torch.ones(1))
    torch.load(_saved(), weights_only=False)


def of_compile() -> None:
    """A function that the compiler leaves in part to Python."""
    import torch

    os.environ.setdefault("TORCH_LOGS", "graph_breaks,recompiles")
    torch._logging.set_logs(graph_breaks=True, recompiles=True)

    @torch.compile(backend="eager")
    def odd(x: torch.Tensor) -> torch.Tensor:
        print("inside")
        return x * int(x.sum().item())

    for size in range(2, 5):
        odd(torch.ones(size))


def of_transformers() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    path = os.environ["MODEL"]
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer("word " * 5000)
    AutoModelForSequenceClassification.from_pretrained(path, num_labels=3)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    model.generate(torch.ones(1, 4, dtype=torch.long), do_sample=False, temperature=0.3, max_length=3, max_new_tokens=4)
    model.generation_config.pad_token_id = None
    model.generate(torch.ones(2, 4, dtype=torch.long), max_new_tokens=2)


def of_peft() -> None:
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(os.environ["MODEL"])
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM", fan_in_fan_out=True))
    with tempfile.TemporaryDirectory() as directory:
        adapted.save_pretrained(directory)
        PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(os.environ["MODEL"]), directory)
    get_peft_model(adapted, LoraConfig(target_modules=["v_proj"]))


def of_tokenizers() -> None:
    """A fork after the tokenizer's threads were used."""
    from transformers import AutoTokenizer

    os.environ.pop("TOKENIZERS_PARALLELISM", None)
    tokenizer = AutoTokenizer.from_pretrained(os.environ["MODEL"])
    tokenizer(["a b", "c d"] * 200)
    subprocess.run(["true"], check=True)
    if (child := os.fork()) == 0:
        tokenizer(["a b"] * 200)
        os._exit(0)
    os.waitpid(child, 0)


def of_numpy() -> None:
    import numpy as np

    np.log(np.zeros(2)) / np.zeros(2)
    np.float64(1e308) * 10
    np.mean([])
    np.array([1e300]).astype("float32")


def of_figures() -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure()
    plt.title("损失 loss", fontname="NoSuchFont")
    figure.savefig("/dev/null", format="png")


def of_datasets() -> None:
    import datasets

    data = datasets.Dataset.from_dict({"text": ["a", "b", "c"]})
    data.map(lambda row: {"n": len(row["text"]), "lock": threading.get_ident()}, num_proc=7)
    try:
        datasets.load_dataset("json", data_files={"train": "/no/such/rows.jsonl"})
    except FileNotFoundError as error:
        _LOG.warning("the extra data set was left out: %s: %s", type(error).__name__, error)


def of_resources() -> None:
    """Things that are left open, and shared memory that is left behind."""
    warnings.simplefilter("always")
    pathlib.Path("/dev/null").open()  # noqa: SIM115
    socket.socket()
    subprocess.run(
        [
            sys.executable,
            "-c",
            "from multiprocessing import shared_memory as m; import os; x = m.SharedMemory(create=True, size=9); "
            "print('kept', x.name)",
        ],
        check=False,
    )


def of_retries() -> None:
    """urllib3 tries again, without success, what is not needed."""
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.util import Retry

    session = requests.Session()
    session.mount("http://", HTTPAdapter(max_retries=Retry(2, backoff_factor=0.01)))
    try:
        session.get("http://127.0.0.1:1/latest", timeout=1)
    except requests.ConnectionError as error:
        _LOG.warning("no newer version could be looked for: %s", error)


def of_processes() -> None:
    """A helper process that is stopped on purpose, and one that ends with a code of its own."""
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    time.sleep(0.1)
    helper.terminate()
    _LOG.info("helper ended with exit code %d", helper.wait())
    code = subprocess.run(["sh", "-c", "exit 3"], check=False).returncode
    _LOG.info("grep said %d (1: nothing found, 3: old format)", code)


def of_multiprocessing() -> None:
    """A manager that is left when its process ends."""
    manager = multiprocessing.Manager()
    shared = manager.dict()
    shared["a"] = 1
    try:
        shared["b"]
    except KeyError:
        _LOG.info("no b yet")


def of_interrupt() -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        _LOG.info("interrupted: the rest of this evaluation is left out")


def _saved() -> pathlib.Path:
    import torch

    path = pathlib.Path(tempfile.mkdtemp()) / "x.pt"
    torch.save({"a": torch.ones(1)}, path)
    return path


if __name__ == "__main__":
    main()
