// Simulated libascendcl, second part: what must be there so that torch_npu loads, and what a simulation does not do:
// kernels given as binaries, the single-operator API from before aclnn (aclop), model dumps, profiling.
#include <acl/acl.h>
#include <acl/acl_op_compiler.h>
#include <acl/acl_rt.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace {
constexpr int kNotSupported = 207000;
constexpr aclError kAclopFailed = 500002;

struct TensorDesc {
  aclDataType type;
  aclFormat format;
  std::vector<int64_t> sizes;
  std::string name;
};
struct DataBuffer {
  void* data;
  size_t bytes;
};

aclError refuse(const char* op) {
  fprintf(stderr, "SIMULATED NPU: aclop '%s' is not simulated\n", op);
  return kAclopFailed;
}
}  // namespace

extern "C" {
// Kernels given as binaries
aclError aclrtBinaryGetFunction(const aclrtBinHandle, const char*, aclrtFuncHandle*) { return kNotSupported; }
aclError aclrtBinaryLoadFromData(const void*, size_t, const aclrtBinaryLoadOptions*, aclrtBinHandle*) {
  return kNotSupported;
}
aclError aclrtGetFunctionAddr(aclrtFuncHandle, void**, void**) { return kNotSupported; }
int rtDevBinaryRegister(const void*, void**) { return kNotSupported; }
int rtFunctionRegister(void*, const void*, const char*, const void*, uint32_t) { return kNotSupported; }
int rtGetC2cCtrlAddr(uint64_t*, uint32_t*) { return kNotSupported; }
int rtKernelLaunch(const void*, uint32_t, void*, uint32_t, void*, void*) { return kNotSupported; }
// Model dumps, profiling
aclError aclmdlInitDump() { return ACL_SUCCESS; }
aclError aclmdlFinalizeDump() { return ACL_SUCCESS; }
aclError aclmdlSetDump(const char*) { return ACL_SUCCESS; }
uint64_t MsprofGetHashId(const char*, size_t) { return 0; }
int32_t MsprofRegisterCallback(uint32_t, void*) { return 0; }
int32_t MsprofReportAdditionalInfo(uint32_t, const void*, uint32_t) { return 0; }
int32_t MsprofReportApi(uint32_t, const void*) { return 0; }
int32_t MsprofReportCompactInfo(uint32_t, const void*, uint32_t) { return 0; }
uint64_t MsprofSysCycleTime() { return 0; }
// The API of single operators from before aclnn: described, never executed
aclTensorDesc* aclCreateTensorDesc(aclDataType t, int n, const int64_t* d, aclFormat f) {
  return (aclTensorDesc*)new TensorDesc{t, f, std::vector<int64_t>(d, d + n), ""};
}
void aclDestroyTensorDesc(const aclTensorDesc* d) { delete (TensorDesc*)d; }
aclError aclGetTensorDescDimV2(const aclTensorDesc* d, size_t i, int64_t* s) {
  *s = ((TensorDesc*)d)->sizes.at(i);
  return ACL_SUCCESS;
}
aclFormat aclGetTensorDescFormat(const aclTensorDesc* d) { return ((TensorDesc*)d)->format; }
size_t aclGetTensorDescNumDims(const aclTensorDesc* d) { return ((TensorDesc*)d)->sizes.size(); }
aclDataType aclGetTensorDescType(const aclTensorDesc* d) { return ((TensorDesc*)d)->type; }
void aclSetTensorDescName(aclTensorDesc* d, const char* n) { ((TensorDesc*)d)->name = n; }
aclError aclSetTensorFormat(aclTensorDesc*, aclFormat) { return ACL_SUCCESS; }
aclError aclSetTensorPlaceMent(aclTensorDesc*, aclMemType) { return ACL_SUCCESS; }
aclError aclSetTensorShape(aclTensorDesc*, int, const int64_t*) { return ACL_SUCCESS; }
aclDataBuffer* aclCreateDataBuffer(void* d, size_t n) { return (aclDataBuffer*)new DataBuffer{d, n}; }
aclError aclDestroyDataBuffer(const aclDataBuffer* b) {
  delete (DataBuffer*)b;
  return ACL_SUCCESS;
}
aclopAttr* aclopCreateAttr() { return (aclopAttr*)new int; }
void aclopDestroyAttr(const aclopAttr* a) { delete (int*)a; }
aclError aclopSetAttrBool(aclopAttr*, const char*, uint8_t) { return ACL_SUCCESS; }
aclError aclopSetAttrDataType(aclopAttr*, const char*, aclDataType) { return ACL_SUCCESS; }
aclError aclopSetAttrFloat(aclopAttr*, const char*, float) { return ACL_SUCCESS; }
aclError aclopSetAttrInt(aclopAttr*, const char*, int64_t) { return ACL_SUCCESS; }
aclError aclopSetAttrListBool(aclopAttr*, const char*, int, const uint8_t*) { return ACL_SUCCESS; }
aclError aclopSetAttrListFloat(aclopAttr*, const char*, int, const float*) { return ACL_SUCCESS; }
aclError aclopSetAttrListInt(aclopAttr*, const char*, int, const int64_t*) { return ACL_SUCCESS; }
aclError aclopSetAttrListListInt(aclopAttr*, const char*, int, const int*, const int64_t* const[]) {
  return ACL_SUCCESS;
}
aclError aclopSetAttrString(aclopAttr*, const char*, const char*) { return ACL_SUCCESS; }
aclError aclopCompileAndExecute(const char* op, int, const aclTensorDesc* const[], const aclDataBuffer* const[], int,
                                const aclTensorDesc* const[], aclDataBuffer* const[], const aclopAttr*, aclopEngineType,
                                aclopCompileType, const char*, aclrtStream) {
  return refuse(op);
}
aclError aclopCompileAndExecuteV2(const char* op, int, aclTensorDesc*[], aclDataBuffer*[], int, aclTensorDesc*[],
                                  aclDataBuffer*[], aclopAttr*, aclopEngineType, aclopCompileType, const char*,
                                  aclrtStream) {
  return refuse(op);
}
aclError aclSetCompileopt(aclCompileOpt, const char*) { return ACL_SUCCESS; }
size_t aclGetCompileoptSize(aclCompileOpt) { return 256; }
aclError aclGetCompileopt(aclCompileOpt, char* v, size_t n) {
  memset(v, 0, n);
  return ACL_SUCCESS;
}
aclError aclopSetCompileFlag(aclOpCompileFlag) { return ACL_SUCCESS; }
aclError aclGenGraphAndDumpForOp(const char*, int, const aclTensorDesc* const[], const aclDataBuffer* const[], int,
                                 const aclTensorDesc* const[], aclDataBuffer* const[], const aclopAttr*,
                                 aclopEngineType, const char*, const aclGraphDumpOption*) {
  return ACL_SUCCESS;
}
aclGraphDumpOption* aclCreateGraphDumpOpt() { return nullptr; }
aclError aclDestroyGraphDumpOpt(const aclGraphDumpOption*) { return ACL_SUCCESS; }
}
