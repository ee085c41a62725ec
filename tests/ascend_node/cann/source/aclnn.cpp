// Descriptors of tensors and scalars, and how every simulated operator is run.
//
//   SIMULATED_NPU_SPOIL  an operator (aclnnSilu) whose results are 1 % too large: do the tests notice?
//   SIMULATED_NPU_FAULT  OPERATOR:N:CODE: the N-th run of the operator breaks the device, as a fault found later
#include "aclnn.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

extern "C" void simulated_npu_break(int code);

namespace simulated {
namespace {
constexpr int kInnerError = 561000;
thread_local const char* running = "";
std::mutex mutex;

std::map<std::string, long> counts;

bool is_running(const char* variable) {
  const char* name = getenv(variable);
  return name && !strcmp(name, running);
}

void break_on_demand(const char* name, long times) {
  const char* wanted = getenv("SIMULATED_NPU_FAULT");
  char found[64];
  long when;
  int code;
  if (wanted && sscanf(wanted, "%63[^:]:%ld:%d", found, &when, &code) == 3 && !strcmp(found, name) && when == times)
    simulated_npu_break(code);
}

// Chips before the 910B lack these operators, as CANN's pages on them and torch_npu's on npu_fusion_attention say:
// https://gitcode.com/cann/ops-nn and ops-transformer, docs of each operator; https://gitcode.com/Ascend/op-plugin.
// Their own way of finding an overflow is not simulated, so they have the one of the 910B here.
void need_on_this_chip(const std::string& name) {
  const char* set = getenv("SIMULATED_NPU_SOC");
  std::string chip = set ? set : "Ascend910B2";
  for (auto* newer : {"Ascend910B", "Ascend910_9", "Ascend95"})
    if (!chip.rfind(newer, 0)) return;
  if (name == "aclnnForeachNonFiniteCheckAndUnscale") return;
  for (auto* lacking : {"FlashAttention", "ApplyAdamW", "Foreach", "RotaryPosition", "SwiGlu", "GroupedMatmul"})
    TORCH_CHECK(name.rfind("aclnn" + std::string(lacking), 0), chip, " does not have this operator");
}

// What is inside an operator is not seen by autograd, autocast or a Python dispatch mode of the caller.
struct Below {
  at::NoGradGuard no_gradients;
  c10::impl::ExcludeDispatchKeyGuard excluded{
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
};
}  // namespace

at::ScalarType type_of(aclDataType type) {
  switch (type) {
    case ACL_FLOAT:
      return at::kFloat;
    case ACL_FLOAT16:
      return at::kHalf;
    case ACL_BF16:
      return at::kBFloat16;
    case ACL_DOUBLE:
      return at::kDouble;
    case ACL_INT8:
      return at::kChar;
    case ACL_UINT8:
      return at::kByte;
    case ACL_INT16:
      return at::kShort;
    case ACL_INT32:
      return at::kInt;
    case ACL_INT64:
      return at::kLong;
    case ACL_BOOL:
      return at::kBool;
    case ACL_COMPLEX64:
      return at::kComplexFloat;
    case ACL_COMPLEX128:
      return at::kComplexDouble;
    default:
      TORCH_CHECK(false, "SIMULATED NPU: no type for aclDataType ", static_cast<int>(type));
  }
}

int plan(uint64_t* workspace_size, aclOpExecutor** executor, std::function<void()> compute) {
  *workspace_size = 0;
  *executor = new aclOpExecutor{std::move(compute)};
  return 0;
}

int run(const char* name, aclOpExecutor* executor) {
  {
    std::lock_guard<std::mutex> guard(mutex);
    break_on_demand(name, ++counts[name]);
  }
  std::unique_ptr<aclOpExecutor> owned(executor);
  running = name;
  try {
    Below below;
    need_on_this_chip(name);
    executor->compute();
  } catch (const std::exception& error) {
    fprintf(stderr, "SIMULATED NPU: %s: %s\n", name, error.what());
    return kInnerError;
  }
  return 0;
}

void put(T out, const at::Tensor& result) {
  const at::Tensor& value = out->value;
  TORCH_CHECK(value.numel() == result.numel(), "output ", value.sizes(), " does not hold ", result.sizes());
  if (!value.is_same(result)) value.copy_(result.sizes() == value.sizes() ? result : result.reshape(value.sizes()));
  changed(out);
}

void changed(T out) {
  if (out->value.is_floating_point() && is_running("SIMULATED_NPU_SPOIL")) out->value.mul_(1.01);
}

void put_smaller(T out, const at::Tensor& result) {
  auto view = out->value.view(-1).narrow(0, 0, result.numel()).view(result.sizes());
  view.copy_(result);
  const_cast<aclTensor*>(out)->value = view;
}

at::Generator generator(int64_t seed, int64_t offset) {
  return at::detail::createCPUGenerator(static_cast<uint64_t>(seed) * 1000003u + static_cast<uint64_t>(offset));
}
}  // namespace simulated

extern "C" {
// For tests: the operators that this process has run, by name.
const char* simulated_npu_operators() {
  static std::string names;
  std::lock_guard<std::mutex> guard(simulated::mutex);
  names.clear();
  for (auto& [name, count] : simulated::counts) names += name + "\n";
  return names.c_str();
}
aclTensor* aclCreateTensor(const int64_t* sizes, uint64_t count, aclDataType type, const int64_t* strides,
                           int64_t offset, aclFormat, const int64_t*, uint64_t, void* data) {
  simulated::Below below;
  auto options = at::TensorOptions().dtype(simulated::type_of(type)).device(at::kCPU);
  at::IntArrayRef size(sizes, count), stride(strides, count);
  if (!data) return new aclTensor{at::empty(size, options)};
  char* begin = static_cast<char*>(data) + offset * static_cast<int64_t>(options.dtype().itemsize());
  return new aclTensor{at::from_blob(begin, size, stride, options)};
}
aclScalar* aclCreateScalar(void* value, aclDataType type) {
  switch (type) {
    case ACL_FLOAT:
      return new aclScalar{*static_cast<float*>(value)};
    case ACL_DOUBLE:
      return new aclScalar{*static_cast<double*>(value)};
    case ACL_FLOAT16:
      return new aclScalar{static_cast<float>(*static_cast<at::Half*>(value))};
    case ACL_BF16:
      return new aclScalar{static_cast<float>(*static_cast<at::BFloat16*>(value))};
    case ACL_INT64:
      return new aclScalar{*static_cast<int64_t*>(value)};
    case ACL_INT32:
      return new aclScalar{*static_cast<int32_t*>(value)};
    case ACL_INT16:
      return new aclScalar{*static_cast<int16_t*>(value)};
    case ACL_INT8:
      return new aclScalar{*static_cast<int8_t*>(value)};
    case ACL_UINT8:
      return new aclScalar{*static_cast<uint8_t*>(value)};
    case ACL_BOOL:
      return new aclScalar{*static_cast<bool*>(value)};
    case ACL_COMPLEX64:
      return new aclScalar{*static_cast<c10::complex<float>*>(value)};
    case ACL_COMPLEX128:
      return new aclScalar{*static_cast<c10::complex<double>*>(value)};
    default:
      return nullptr;
  }
}
aclIntArray* aclCreateIntArray(const int64_t* v, uint64_t n) { return new aclIntArray{{v, v + n}}; }
aclFloatArray* aclCreateFloatArray(const float* v, uint64_t n) { return new aclFloatArray{{v, v + n}}; }
aclBoolArray* aclCreateBoolArray(const bool* v, uint64_t n) { return new aclBoolArray{{v, v + n}}; }
aclTensorList* aclCreateTensorList(const aclTensor* const* v, uint64_t n) { return new aclTensorList{{v, v + n}}; }
aclScalarList* aclCreateScalarList(const aclScalar* const* v, uint64_t n) { return new aclScalarList{{v, v + n}}; }
int aclDestroyTensor(const aclTensor* p) { return delete p, 0; }
int aclDestroyScalar(const aclScalar* p) { return delete p, 0; }
int aclDestroyIntArray(const aclIntArray* p) { return delete p, 0; }
int aclDestroyFloatArray(const aclFloatArray* p) { return delete p, 0; }
int aclDestroyBoolArray(const aclBoolArray* p) { return delete p, 0; }
int aclDestroyTensorList(const aclTensorList* p) {
  for (auto* tensor : p->values) delete tensor;
  return delete p, 0;
}
int aclDestroyScalarList(const aclScalarList* p) { return delete p, 0; }
// The caller frees the sizes with delete[].
int aclGetViewShape(const aclTensor* tensor, int64_t** sizes, uint64_t* count) {
  auto found = tensor->value.sizes();
  *count = found.size();
  *sizes = new int64_t[found.size() + 1];
  std::copy(found.begin(), found.end(), *sizes);
  return 0;
}
int InitHugeMemThreadLocal(void*, bool) { return 0; }
void UnInitHugeMemThreadLocal(void*, bool) {}
void ReleaseHugeMem(void*, bool) {}
void AddTensorAddrToCachedList(void*) {}
bool CanUsePTACache(const char*) { return false; }
}
