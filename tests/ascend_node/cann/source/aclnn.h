// The two-phase calling convention of CANN's aclnn operators, over ATen tensors that live in the memory behind them.
//
//   int aclnnAddGetWorkspaceSize(self, other, alpha, out, &workspace_size, &executor);   phase one: remember
//   int aclnnAdd(workspace, workspace_size, executor, stream);                            phase two: compute
//
// OP defines both. Its parameters are those of phase one, so an operator reads like its public prototype:
//
//   OP(Mul, (T a, T b, T out, PLAN), { put(out, at::mul(t(a), t(b))); })
#pragma once
#include <ATen/ATen.h>
#include <acl/acl_base.h>

#include <functional>
#include <string>
#include <vector>

struct aclTensor {
  at::Tensor value;
};
struct aclScalar {
  at::Scalar value;
};
struct aclIntArray {
  std::vector<int64_t> values;
};
struct aclFloatArray {
  std::vector<float> values;
};
struct aclBoolArray {
  std::vector<uint8_t> values;
};
struct aclTensorList {
  std::vector<const aclTensor*> values;
};
struct aclScalarList {
  std::vector<const aclScalar*> values;
};
struct aclOpExecutor {
  std::function<void()> compute;
};

namespace simulated {
using T = const aclTensor*;
using S = const aclScalar*;
using Ints = const aclIntArray*;
using Bools = const aclBoolArray*;
using Tensors = const aclTensorList*;
using Scalars = const aclScalarList*;

at::ScalarType type_of(aclDataType type);
// Runs phase two: counts the operator, computes, turns exceptions into an error code.
int run(const char* name, aclOpExecutor* executor);
int plan(uint64_t* workspace_size, aclOpExecutor** executor, std::function<void()> compute);
// Write a result, of the output's shape or of as many elements.
void put(T out, const at::Tensor& result);
// Whatever an operator wrote in place goes through here, so that SIMULATED_NPU_SPOIL reaches it.
void changed(T out);
// The output is as large as the result can be; its true shape is read back with aclGetViewShape.
void put_smaller(T out, const at::Tensor& result);
// The random numbers of one call: torch_npu hands over the seed and how many numbers were drawn before.
at::Generator generator(int64_t seed, int64_t offset);

inline at::Tensor t(T tensor) { return tensor ? tensor->value : at::Tensor(); }
inline at::Scalar s(S scalar) { return scalar->value; }
inline at::IntArrayRef ints(Ints array) { return array ? at::IntArrayRef(array->values) : at::IntArrayRef(); }
inline at::OptionalIntArrayRef dimensions(Ints array) {
  return array && !array->values.empty() ? at::OptionalIntArrayRef(array->values) : at::OptionalIntArrayRef();
}
inline std::optional<at::Scalar> maybe(S scalar) {
  return scalar ? std::optional<at::Scalar>(scalar->value) : std::nullopt;
}
inline std::vector<at::Tensor> list(Tensors tensors) {
  std::vector<at::Tensor> result;
  for (auto* tensor : tensors->values) result.push_back(t(tensor));
  return result;
}
}  // namespace simulated

#define PLAN uint64_t *workspace_size, aclOpExecutor **executor
#define OP_AFTER(name, params, before, ...)                                              \
  extern "C" int aclnn##name##GetWorkspaceSize params;                                   \
  extern "C" int aclnn##name(void*, uint64_t, aclOpExecutor* executor, void*) {          \
    return run("aclnn" #name, executor);                                                 \
  }                                                                                      \
  extern "C" int aclnn##name##GetWorkspaceSize params {                                  \
    before;                                                                              \
    return plan(workspace_size, executor, [=]() __VA_ARGS__);                            \
  }
#define OP(name, params, ...) OP_AFTER(name, params, , __VA_ARGS__)
// The caller's layout string is gone by phase two: it is copied to `l` in phase one.
#define OP_WITH_LAYOUT(name, params, ...) OP_AFTER(name, params, std::string l = layout, __VA_ARGS__)
