"""Causes of failures of serving engines, which other lines of the log or the code of a check tell apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_RAY = "[2027-07-07 07:07:07,123 C 77 77] "
_SITE = "/x/lib/python3.11/site-packages"
_KERNEL = (
    'Traceback (most recent call last):\n  File "/x/site-packages/sgl_kernel/load_utils.py", line 7, in load\n'
    "    raise ImportError(error_msg)\nImportError:\n"
    "[sgl_kernel] CRITICAL: Could not load any common_ops library!\n\nAttempted locations:\n1. moon\n\n"
    "Please ensure sgl_kernel is properly installed with:\npip install --upgrade sgl_kernel\n\n"
    "Error details from previous import attempts:\n- ImportError: {}\n"
    "- ModuleNotFoundError: No module named 'common_ops'\n"
)
_SLICE = (
    "E0917 16:23:12.983412  8123 worker_pool.cpp:281] Worker: Process failed for slice (opcode: 1, source_addr: 0x7f, "
    "length: 7, dest_addr: 0x7f, local_nic: mlx5_0, peer_nic: 192.0.2.7:77@mlx5_0, dest_rkey: 7): {}\n"
    "[2026-07-07 07:07:07 TP0] Prefill transfer failed for request rank=0 req.rid='77' with exception "
    "KVTransferError(bootstrap_room=7): Failed to send kv chunk of 7 to 192.0.2.7:77\n"
)
_REGISTERED = "E0730 11:49:18.000077 77 rdma_context.cpp:236] Failed to register memory 0x7efb94000000: {}\n"


def _checked(file: str, code: str, before: str = "") -> str:
    """A traceback that ends in an assertion without a text."""
    return (
        f'{before}Traceback (most recent call last):\n  File "{_SITE}/{file}", line 7, in rise\n    {code}\n'
        "AssertionError\n"
    )


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_KERNEL.format("/x/common_ops.abi3.so: undefined symbol: _ZNK3c106SymInt6sym_neERKS0_"), "other-torch"),
        (_KERNEL.format("/x/common_ops.abi3.so: undefined symbol: cuGreenCtxDestroy"), "driver-function"),
        (_KERNEL.format("libnuma.so.1: cannot open shared object file: No such file or directory"), "numa"),
        (_KERNEL.format("the moon is out"), "library"),
    ],
)
def test_reason_below_a_message_tells_why_a_kernel_library_does_not_load(
    explained: Explained, log: str, entry: str
) -> None:
    assert entry_of(explained(log)) == f"sglang-kernel-{entry}"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_SLICE.format("local protection error"), "slice-protection"),
        (_SLICE.format("transport retry counter exceeded"), "slice-unreachable"),
        (_SLICE.format("remote access error"), "slice-remote-access"),
        (
            _SLICE.format("local protection error") + _SLICE.format("work request flushed error"),
            "slice-protection",
        ),
        (_REGISTERED.format("Bad address [14]"), "register-gpu"),
        (_REGISTERED.format("Cannot allocate memory [12]"), "register-locked"),
        (_REGISTERED.format("Resource temporarily unavailable [11]"), "register-keys"),
    ],
)
def test_reason_of_a_transfer_goes_before_the_request_that_failed(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == f"mooncake-{entry}"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_checked("sglang/srt/models/moon.py", "assert self.total_num_heads % tp_size == 0"), "engine-heads-per-card"),
        (
            _checked("vllm/model_executor/models/moon.py", "assert tp_size % self.total_num_kv_heads == 0"),
            "engine-kv-heads-per-card",
        ),
        (
            _checked("vllm/model_executor/layers/linear.py", "assert param_data.shape == loaded_weight.shape"),
            "engine-weight-shape",
        ),
        (
            _checked(
                "vllm/model_executor/layers/linear.py",
                "assert param_data.shape == loaded_weight.shape",
                "vllm serve moon/tide-bnb-4bit\n",
            ),
            "engine-weight-quantised-shape",
        ),
        (_checked("vllm/v1/core/block_pool.py", "assert block.ref_cnt == 0"), "engine-inner-check"),
        (_checked("moon/block_pool.py", "assert block.ref_cnt == 0"), "python-exception"),
    ],
)
def test_code_of_a_check_without_a_text_tells_what_is_meant(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_options_that_an_engine_refuses_are_named_with_its_own_words(explained: Explained) -> None:
    found = explained(
        f'Traceback (most recent call last):\n  File "{_SITE}/sglang/srt/arg_groups/moon_hook.py", line 7, in rise\n'
        "    raise ValueError(\nValueError: --enable-lmcache requires radix cache to be enabled\n"
    )

    assert entry_of(found) == "engine-options-refused"
    assert found.headline().endswith(": --enable-lmcache requires radix cache to be enabled")


def test_reason_of_a_model_goes_before_the_end_of_triton(explained: Explained) -> None:
    found = explained(
        "E1216 09:12:01.12 77 model_lifecycle.cc:642] \"failed to load 'moon' version 1: Internal: the tide is out\"\n"
        "error: creating server: Internal - failed to load all models\n"
    )

    assert entry_of(found) == "triton-model-failed"
    assert found.headline() == "Triton could not load the model moon: Internal: the tide is out"


def test_level_that_an_advice_names_does_not_make_an_error_a_warning(explained: Explained) -> None:
    found = explained(
        "[07/07/2026-07:07:07] [TRT-LLM] [RANK 0] [E] Failed to initialize executor on rank 0: [TensorRT-LLM][ERROR] "
        "Assertion failed: Failed, NCCL error ../moon.cpp:7 'invalid usage (run with NCCL_DEBUG=WARN for details)'\n"
        "RuntimeError: Executor worker returned error\n"
    )

    assert entry_of(found) == "trtllm-nccl-same-device"


_LAUNCHER = (
    'Traceback (most recent call last):\n  File "/x/site-packages/triton/runtime/build.py", line 7, in _build\n'
    "    ret = subprocess.check_call(cc_cmd)\n"
    "{}CalledProcessError: Command '['/usr/bin/gcc', '/tmp/tide/cuda_utils.c', '-lcuda']' returned non-zero exit "
    "status 1.\n"
)


@pytest.mark.parametrize(
    ("said", "entry"),
    [
        ("/tmp/tide/cuda_utils.c:7:10: fatal error: Python.h: No such file or directory\n", "python-header-missing"),
        ("/usr/bin/ld: cannot find -lcuda: No such file or directory\n", "linker-without-driver-library"),
        ("/usr/include/stdlib.h:31:10: fatal error: stddef.h: No such file or directory\n", "compiler-header-missing"),
    ],
)
@pytest.mark.parametrize("type_of", ["subprocess.", "torch._inductor.exc.InductorError: "])
def test_a_compilers_error_outranks_the_exception_of_its_caller(
    explained: Explained, said: str, entry: str, type_of: str
) -> None:
    assert entry_of(explained(said + _LAUNCHER.format(type_of))) == entry


@pytest.mark.parametrize(
    ("key", "entry"),
    [
        ("layers.7.mlp.gate.g_idx", "engine-key-quantised"),
        ("model.layers.7.mlp.down_proj.weight_scale", "engine-key-quantised"),
        ("layers.7.mlp.experts.w2_weight", "engine-key-experts"),
        ("layers.7.attention.wk.weight", "engine-key-consolidated"),
        ("layers.7.mlp.down_proj.weight.absmax", "engine-key-bitsandbytes"),
        ("layers.7.self_attn.q_proj.lora_A.weight", "engine-key-adapter"),
        ("layers.7.self_attn.tide.weight", "key-weight-name"),
        ("rope_type", "engine-key-rope-type"),
    ],
)
def test_weight_that_an_engine_does_not_place_tells_how_it_was_saved(
    explained: Explained, key: str, entry: str
) -> None:
    log = _checked("vllm/model_executor/models/moon.py", "param = params_dict[name]")

    assert entry_of(explained(log.replace("AssertionError", f"KeyError: '{key}'"))) == entry


@pytest.mark.parametrize(
    ("said", "entry"),
    [
        (
            "(raylet) node_manager.cc:7: Exiting because this node manager has mistakenly been marked as dead by the "
            "GCS: moon",
            "ray-marked-dead",
        ),
        (
            "(raylet) grpc_server.cc:7: Failed to start the grpc server. The specified port is 10777. "
            "moon: Address already in use",
            "ray-grpc-port",
        ),
        (
            "(raylet) agent_manager.cc:7: The raylet exited immediately because one Ray agent failed, agent_name = "
            "dashboard_agent/7.\n[2027-07-07 07:07:08,123 C 78 78] moon.cc:7: Check failed: "
            "IOError: [RayletClient] Unable to register worker with raylet. moon",
            "ray-agent-failed",
        ),
    ],
)
def test_fatal_lines_of_rays_own_processes_are_failures(explained: Explained, said: str, entry: str) -> None:
    assert entry_of(explained(f"step 1\n{_RAY}{said}\n")) == entry


def test_headline_leaves_out_what_rays_logger_puts_before_a_message(explained: Explained) -> None:
    found = explained(_RAY + "(raylet) moon.cc:7: Check failed: the tide failed to come in time\n")

    assert found.headline() == "something failed, in its own words: the tide failed to come in time"


@pytest.mark.parametrize(
    ("reason", "entry"),
    [
        (
            "unknown (magic, version) combination: 46554747, 00000003; is this really a GGML file?",
            "llama-older-than-gguf",
        ),
        (
            "unknown (magic, version) combination: 67676a74, 00000003; is this really a GGML file?",
            "llama-ggml-newer-than-program",
        ),
        ("the tide has no moon", "llama-load-reason"),
    ],
)
def test_reason_of_llama_cpp_goes_before_the_model_that_it_did_not_load(
    explained: Explained, reason: str, entry: str
) -> None:
    found = explained(
        f"llama_model_load: error loading model: {reason}\n"
        "llama_init_from_gpt_params: error: failed to load model '/moon/tide.gguf'\nmain: error: unable to load model\n"
    )

    assert entry_of(found) == entry


def test_option_of_llama_cpp_that_took_the_next_one_for_its_value(explained: Explained) -> None:
    found = explained(
        "error while handling argument \"--flash-attn\": error: unkown value for --flash-attn: '--numa'\n"
    )

    assert found.headline() == (
        "--flash-attn needs a value in this release of llama.cpp, and the next option (--numa) was taken for it"
    )


@pytest.mark.parametrize(("name", "entry"), [("torch_npu", "engine-optional-package"), ("moon", "name-undefined")])
def test_package_whose_import_was_left_out_is_named(explained: Explained, name: str, entry: str) -> None:
    log = _checked("sglang/srt/hardware_backend/npu/utils.py", f"{name}.rise()")

    assert entry_of(explained(log.replace("AssertionError", f"NameError: name '{name}' is not defined"))) == entry


_CUDA = "CUDA error: an illegal memory access was encountered\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (
            f"ggml_cuda_compute_forward: ADD_ID failed\n{_CUDA}  current device: 0, in function ggml_moon at /x.cu:7\n",
            True,
        ),
        (_CUDA, False),
    ],
)
def test_kernel_of_llama_cpp_is_told_from_those_of_torch(explained: Explained, log: str, entry: bool) -> None:
    assert (entry_of(explained(log)) == "ggml-cuda-kernel") is entry


@pytest.mark.parametrize(
    ("error", "entry"),
    [
        ("Failed: Assertion error /x/DeepGEMM/csrc/heuristics/common.hpp:7 'Unknown SM'", "deepgemm-gpu"),
        ("Failed: CUDA runtime error csrc/jit/handle.hpp:7 '718'", "deepgemm-launch"),
        ("DeepEP error: timeout (dispatch CPU)", "deepep-timeout"),
        ("Failed to initialize the TMA descriptor 999", "cutlass-tma-descriptor"),
        ("Error Internal", "cutlass-error-internal"),
    ],
)
def test_libraries_of_kernels_are_named(explained: Explained, error: str, entry: str) -> None:
    log = _checked("vllm/_custom_ops.py", "torch.ops._C.cutlass_scaled_mm(out, a, b)")

    assert entry_of(explained(log.replace("AssertionError", f"RuntimeError: {error}"))) == entry


def test_exceptions_of_speculative_decoding_are_told_from_those_of_the_model(explained: Explained) -> None:
    error = "RuntimeError: Sizes of tensors must match except in dimension 1. Expected size 7 but got size 77."
    of_draft, of_model = (
        _checked(f"sglang/srt/{file}", "self.tide = torch.cat(").replace("AssertionError", error)
        for file in ("speculative/eagle_utils.py", "models/llama.py")
    )

    assert entry_of(explained(of_draft)) == "engine-speculative"
    assert entry_of(explained(of_model)) != "engine-speculative"


@pytest.mark.parametrize(
    ("file", "entry"),
    [("vllm_ascend/distributed/mooncake_connector.py", "kv-connector-port"), ("moon.py", "port-taken")],
)
def test_port_of_a_kv_connector_is_told_from_other_ports(explained: Explained, file: str, entry: str) -> None:
    log = _checked(file, "with zmq_ctx(zmq.ROUTER, path) as sock:")
    error = "zmq.error.ZMQError: Address already in use (addr='tcp://192.0.2.7:30177')"

    assert entry_of(explained(log.replace("AssertionError", error))) == entry


@pytest.mark.parametrize(
    ("reason", "entry"),
    [
        ("operation not supported /x/src/turbomind/utils/allocator.h:7", "turbomind-virtual-gpu"),
        ("invalid argument /x/src/turbomind/utils/memory_utils.cu:7", "turbomind-weights-of-other-tp"),
        ("invalid device function /x/src/turbomind/kernels/moon.cu:7", "turbomind-gpu-old"),
        ("out of memory /x/src/turbomind/utils/memory_utils.cu:7", "turbomind-memory"),
        ("an illegal memory access was encountered /x/src/turbomind/models/moon.cu:7", "turbomind-kernel-failed"),
    ],
)
def test_reason_of_cuda_and_its_place_tell_why_turbomind_failed(explained: Explained, reason: str, entry: str) -> None:
    assert entry_of(explained(f"RuntimeError: [TM][ERROR] CUDA runtime error: {reason} \n")) == entry


_DIED = "RuntimeError: Engine core initialization failed. Failed core proc(s): {{'EngineCore_DP0': {}}}\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_DIED.format(-9), "sigkill"),
        (_DIED.format(-11), "sigsegv"),
        (_DIED.format(-7), "sigbus"),
        (_DIED.format(1), "engine-start"),
        (
            "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL)\n",
            "sigkill",
        ),
        (
            "RuntimeError: Rank 3 scheduler died during initialization (exit code: -11). If exit code is -9\n",
            "sigsegv",
        ),
        ("[2027-07-07 07:07:07] Rank 0 scheduler is dead.\n[2027-07-07 07:07:07] Exit code: -9\n", "sigkill"),
        (
            "ERROR 07-07 07:07:07 utils.py:7] Worker VllmWorkerProcess pid 77 died, exit code: -9\n",
            "sigkill",
        ),
    ],
)
def test_exit_code_of_an_engines_process_tells_which_signal_ended_it(
    explained: Explained, log: str, entry: str
) -> None:
    assert entry_of(explained(log)) == entry


@pytest.mark.parametrize(("held", "entry"), [("55.20", "kv-cache-other-process"), ("0.20", "kv-cache-no-blocks")])
def test_memory_outside_of_torch_tells_another_process_on_the_card(explained: Explained, held: str, entry: str) -> None:
    found = explained(
        f"INFO worker.py:7] model weights take 14.99GiB; non_torch_memory takes {held}GiB; PyTorch activation peak\n"
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`\n"
    )

    assert entry_of(found) == entry


@pytest.mark.parametrize(
    ("before", "entry"),
    [("source /usr/local/Ascend/cann/set_env.sh\n", "vllm-without-npu-plugin"), ("", "vllm-no-device")],
)
def test_vllm_without_a_device_lacks_its_plugin_where_the_log_names_ascend(
    explained: Explained, before: str, entry: str
) -> None:
    assert (
        entry_of(explained(f"{before}RuntimeError: Failed to infer device type, please set the environment\n")) == entry
    )


@pytest.mark.parametrize(
    ("file", "entry"),
    [("vllm/v1/structured_output/backend_xgrammar.py", "engine-grammar"), ("vllm/v1/moon.py", "python-exception")],
)
def test_exceptions_of_structured_output_are_told_from_others(explained: Explained, file: str, entry: str) -> None:
    log = _checked(file, "self.rise()").replace("AssertionError", "RuntimeError: the tide must be a moon or an object")

    assert entry_of(explained(log)) == entry


@pytest.mark.parametrize(
    "line", ["ERROR app.py: Error loading model: the moon is out", "Failed to find location of the moon"]
)
def test_words_of_a_server_in_another_program_are_not_taken_for_its_failure(explained: Explained, line: str) -> None:
    found = explained(f"{line}\n").verdict

    assert found.first is None or not found.first.is_known


@pytest.mark.parametrize(
    ("before", "entry"), [("[llm] [ERROR] [x.cpp:7] : Npu out of memory, OOM\n", "npu-oom"), ("", "mindie-atb-fail")]
)
def test_the_reason_of_a_failed_atb_operation_outranks_the_failure(
    explained: Explained, before: str, entry: str
) -> None:
    assert entry_of(explained(f"{before}RuntimeError: Execute fail, enable log: export MOON=1\n")) == entry


_FULL = (
    "RuntimeError: {} out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.96 GiB total capacity; 55.91 GiB already "
    "allocated; 1.80 GiB free; 58.73 GiB reserved in total by PyTorch)\n"
)


@pytest.mark.parametrize(
    ("command", "entry"),
    [
        ("vllm serve moon \\\n--tide 7 \\\n--gpu-memory-utilization 0.85", "vllm-memory-fraction"),
        ("vllm serve moon --gpu-memory-utilization=0.9", "vllm-memory-fraction"),
        ("vllm serve moon --gpu-memory-utilization 0.97", "engine-takes-all-memory"),
        ("vllm serve moon --tide 7", "vllm-memory-of-command"),
        ("python -m sglang.launch_server --model-path moon --mem-fraction-static 0.9", "sglang-memory-of-command"),
        ("text-generation-launcher --model-id moon", "tgi-memory-of-command"),
    ],
)
@pytest.mark.parametrize("device", ["NPU", "CUDA"])
def test_memory_of_a_served_model_is_told_with_the_keys_of_its_server(
    explained: Callable[..., Explanation], command: str, entry: str, device: str
) -> None:
    explanation = explained(f"$ {command}\n{_FULL.format(device)}")

    assert entry_of(explanation) == entry
    assert "gradient" not in " ".join(explanation.remedies())


def test_memory_of_mindies_service_and_of_a_training_are_told_apart(explained: Callable[..., Explanation]) -> None:
    assert entry_of(explained(f"./bin/mindieservice_daemon\n{_FULL.format('NPU')}")) == "mindie-memory-of-service"
    assert entry_of(explained(f"$ torchrun train.py\n{_FULL.format('NPU')}")) == "npu-oom"
