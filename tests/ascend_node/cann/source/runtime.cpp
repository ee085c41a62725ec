// Simulated libascendcl: devices, memory, streams and events of CANN's runtime, on host memory.
//
// Streams run synchronously: what a caller queues has happened when the call returns. The environment says what is
// simulated; all variables begin with SIMULATED_NPU and count at the moment when they are asked for:
//
//   SIMULATED_NPU            what stands in for the device, in words; without it nothing starts
//   SIMULATED_NPU_DEVICES    how many devices there are (default 2; 0 works)
//   SIMULATED_NPU_MEMORY_MB  memory of each (default 65536)
//   SIMULATED_NPU_SOC        name of the chip; torch_npu takes real names only (default Ascend910B2)
//   SIMULATED_NPU_CANN       version of CANN (default 9.0.0)
#include <acl/acl.h>
#include <acl/acl_rt.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {
constexpr int kMaxDevices = 64;
constexpr aclError kInvalidDevice = 107001, kNoContext = 107002, kInvalidParameter = 107000, kOutOfMemory = 207001,
                   kNotSupported = 207000;

struct Block {
  size_t bytes;
  int device;
};
struct Stream {
  int device;
  int32_t id;
};
struct Event {
  double milliseconds = 0;
};
struct Context {
  int device;
};

std::mutex mutex;
std::map<void*, Block> blocks;
std::vector<size_t> used(kMaxDevices, 0);
Context contexts[kMaxDevices];
std::atomic<int32_t> next_stream{0};
std::atomic<int> fault{0};
thread_local int current = -1;
thread_local std::string last_error;
int64_t system_parameters[16];

const char* text(const char* name, const char* otherwise) {
  const char* value = getenv(name);
  return value && *value ? value : otherwise;
}
int number(const char* name, int otherwise) { return atoi(text(name, std::to_string(otherwise).c_str())); }
int device_count() { return number("SIMULATED_NPU_DEVICES", 2); }
size_t memory_of_a_device() { return static_cast<size_t>(number("SIMULATED_NPU_MEMORY_MB", 65536)) << 20; }
int device() {
  if (current < 0) current = 0;
  return current;
}
aclError fail(aclError code, const std::string& message) {
  last_error = "SIMULATED NPU: " + message;
  return code;
}
double now() {
  using namespace std::chrono;
  return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}
// What a wait for the device answers: an operator that failed on the device shows here, not where it was queued.
aclError waited() {
  return fault ? fail(fault, "an operator failed on the device; found when its stream was waited for") : ACL_SUCCESS;
}
}  // namespace

extern "C" {
// Called by the simulated operators when SIMULATED_NPU_FAULT asks for it.
void simulated_npu_break(int code) { fault = code; }

aclError aclInit(const char*) {
  const char* what = text("SIMULATED_NPU", nullptr);
  if (!what) return fail(kNotSupported, "these libraries compute nothing real; set SIMULATED_NPU to use them");
  fprintf(stderr, "SIMULATED NPU: %s × %d is host memory (%s), process %d\n", text("SIMULATED_NPU_SOC", "Ascend910B2"),
          device_count(), what, getpid());
  for (int i = 0; i < kMaxDevices; i++) contexts[i].device = i;
  return ACL_SUCCESS;
}
aclError aclFinalize() { return ACL_SUCCESS; }
const char* aclrtGetSocName() { return text("SIMULATED_NPU_SOC", "Ascend910B2"); }
const char* aclGetRecentErrMsg() { return last_error.c_str(); }
void aclAppLog(aclLogLevel level, const char* function, const char*, uint32_t line, const char* format, ...) {
  if (level < ACL_ERROR) return;
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "SIMULATED NPU log: %s:%u ", function, line);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
}
aclError aclsysGetCANNVersion(aclCANNPackageName, aclCANNPackageVersion* version) {
  memset(version, 0, sizeof *version);
  snprintf(version->version, sizeof version->version, "%s", text("SIMULATED_NPU_CANN", "9.0.0"));
  return ACL_SUCCESS;
}
aclError aclsysGetVersionStr(char*, char* version) {
  strcpy(version, text("SIMULATED_NPU_CANN", "9.0.0"));
  return ACL_SUCCESS;
}

// Devices
aclError aclrtGetDeviceCount(uint32_t* count) {
  *count = device_count();
  return ACL_SUCCESS;
}
aclError aclrtSetDevice(int32_t index) {
  if (index < 0 || index >= device_count()) return fail(kInvalidDevice, "invalid device id " + std::to_string(index));
  current = index;
  return ACL_SUCCESS;
}
aclError aclrtGetDevice(int32_t* index) {
  if (current < 0) return kNoContext;
  *index = current;
  return ACL_SUCCESS;
}
aclError aclrtResetDevice(int32_t) { return ACL_SUCCESS; }
aclError aclrtResetDeviceForce(int32_t) { return ACL_SUCCESS; }
aclError aclrtSynchronizeDevice() { return waited(); }
aclError aclrtSynchronizeDeviceWithTimeout(int32_t) { return waited(); }
aclError aclrtGetCurrentContext(aclrtContext* context) {
  if (current < 0) return kNoContext;
  *context = &contexts[current];
  return ACL_SUCCESS;
}
aclError aclrtSetCurrentContext(aclrtContext context) {
  current = static_cast<int>(static_cast<Context*>(context) - contexts);
  return ACL_SUCCESS;
}
aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t, int32_t) {
  *can = 1;
  return ACL_SUCCESS;
}
aclError aclrtDeviceEnablePeerAccess(int32_t, uint32_t) { return ACL_SUCCESS; }
aclError aclrtDeviceGetBareTgid(int32_t* pid) {
  *pid = getpid();
  return ACL_SUCCESS;
}
aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo, int64_t* cores) {
  *cores = 24;
  return ACL_SUCCESS;
}
aclError aclrtGetDeviceInfo(uint32_t, aclrtDevAttr what, int64_t* value) {
  // Everything else that torch_npu asks here counts cores.
  *value = what == ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE ? static_cast<int64_t>(memory_of_a_device()) : 24;
  return ACL_SUCCESS;
}
aclError aclrtGetPrimaryCtxState(int32_t, uint32_t* flags, int32_t* active) {
  if (flags) *flags = 0;
  *active = 1;
  return ACL_SUCCESS;
}
aclError aclrtGetDeviceUtilizationRate(int32_t, aclrtUtilizationInfo* rate) {
  memset(rate, 0, sizeof *rate);
  return ACL_SUCCESS;
}
aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode) { return ACL_SUCCESS; }
aclError aclrtSetOpWaitTimeout(uint32_t) { return ACL_SUCCESS; }
aclError aclrtSetOpExecuteTimeOut(uint32_t) { return ACL_SUCCESS; }
aclError aclrtGetLastError(aclrtLastErrLevel) { return ACL_SUCCESS; }
aclError aclrtPeekAtLastError(aclrtLastErrLevel) { return ACL_SUCCESS; }
aclError aclrtSetSysParamOpt(aclSysParamOpt option, int64_t value) {
  system_parameters[option & 15] = value;
  return ACL_SUCCESS;
}
aclError aclrtGetSysParamOpt(aclSysParamOpt option, int64_t* value) {
  *value = system_parameters[option & 15];
  return ACL_SUCCESS;
}
aclError aclrtCtxSetSysParamOpt(aclSysParamOpt option, int64_t value) { return aclrtSetSysParamOpt(option, value); }
aclError aclrtCtxGetSysParamOpt(aclSysParamOpt option, int64_t* value) { return aclrtGetSysParamOpt(option, value); }
// As a 910B answers: infinities and NaN are kept, bf16 is there, operators are compiled ahead.
aclError aclGetCannAttributeList(const aclCannAttr** list, size_t* count) {
  static aclCannAttr known[] = {ACL_CANN_ATTR_INF_NAN, ACL_CANN_ATTR_BF16, ACL_CANN_ATTR_JIT_COMPILE};
  *list = known;
  *count = 3;
  return ACL_SUCCESS;
}
aclError aclGetCannAttribute(aclCannAttr attribute, int32_t* value) {
  *value = attribute != ACL_CANN_ATTR_JIT_COMPILE;
  return ACL_SUCCESS;
}

// Memory
aclError aclrtMalloc(void** pointer, size_t bytes, aclrtMemMallocPolicy) {
  std::lock_guard<std::mutex> guard(mutex);
  if (used[device()] + bytes > memory_of_a_device()) return fail(kOutOfMemory, "out of device memory");
  if (posix_memalign(pointer, 512, bytes ? bytes : 512)) return kOutOfMemory;
  memset(*pointer, 0xCD, bytes);  // a device never clears memory: who reads before writing must notice
  blocks[*pointer] = {bytes, device()};
  used[device()] += bytes;
  return ACL_SUCCESS;
}
aclError aclrtMallocAlign32(void** pointer, size_t bytes, aclrtMemMallocPolicy policy) {
  return aclrtMalloc(pointer, bytes, policy);
}
aclError aclrtFree(void* pointer) {
  std::lock_guard<std::mutex> guard(mutex);
  auto found = blocks.find(pointer);
  if (found == blocks.end()) return fail(kInvalidParameter, "free of memory that was not allocated");
  used[found->second.device] -= found->second.bytes;
  blocks.erase(found);
  free(pointer);
  return ACL_SUCCESS;
}
aclError aclrtMallocHost(void** pointer, size_t bytes) {
  return posix_memalign(pointer, 64, bytes ? bytes : 64) ? kOutOfMemory : ACL_SUCCESS;
}
aclError aclrtFreeHost(void* pointer) {
  free(pointer);
  return ACL_SUCCESS;
}
aclError aclrtMemcpy(void* to, size_t room, const void* from, size_t bytes, aclrtMemcpyKind) {
  if (bytes > room) return fail(kInvalidParameter, "copy of more than fits");
  memmove(to, from, bytes);
  return waited();
}
aclError aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t bytes, aclrtMemcpyKind, aclrtStream) {
  if (bytes > room) return fail(kInvalidParameter, "copy of more than fits");
  memmove(to, from, bytes);
  return ACL_SUCCESS;
}
aclError aclrtMemcpyAsyncWithCondition(void* to, size_t room, const void* from, size_t bytes, aclrtMemcpyKind kind,
                                       aclrtStream stream) {
  return aclrtMemcpyAsync(to, room, from, bytes, kind, stream);
}
aclError aclrtMemset(void* to, size_t room, int32_t value, size_t bytes) {
  if (bytes > room) return fail(kInvalidParameter, "fill of more than fits");
  memset(to, value, bytes);
  return ACL_SUCCESS;
}
aclError aclrtMemsetAsync(void* to, size_t room, int32_t value, size_t bytes, aclrtStream) {
  return aclrtMemset(to, room, value, bytes);
}
aclError aclrtGetMemInfo(aclrtMemAttr, size_t* free_bytes, size_t* total) {
  std::lock_guard<std::mutex> guard(mutex);
  *total = memory_of_a_device();
  *free_bytes = *total - used[device()];
  return ACL_SUCCESS;
}
// Virtual memory and memory shared between processes are not simulated; torch_npu then allocates in blocks.
aclError aclrtReserveMemAddress(void**, size_t, size_t, void*, uint64_t) { return kNotSupported; }
aclError aclrtReleaseMemAddress(void*) { return kNotSupported; }
aclError aclrtMallocPhysical(aclrtDrvMemHandle*, size_t, const aclrtPhysicalMemProp*, uint64_t) {
  return kNotSupported;
}
aclError aclrtFreePhysical(aclrtDrvMemHandle) { return kNotSupported; }
aclError aclrtMapMem(void*, size_t, size_t, aclrtDrvMemHandle, uint64_t) { return kNotSupported; }
aclError aclrtUnmapMem(void*) { return kNotSupported; }
aclError aclrtMemExportToShareableHandle(aclrtDrvMemHandle, aclrtMemHandleType, uint64_t, uint64_t*) {
  return kNotSupported;
}
aclError aclrtMemImportFromShareableHandle(uint64_t, int32_t, aclrtDrvMemHandle*) { return kNotSupported; }
aclError aclrtMemSetPidToShareableHandle(uint64_t, int32_t*, size_t) { return kNotSupported; }

// Streams and events
aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) {
  *stream = new Stream{device(), next_stream++};
  return ACL_SUCCESS;
}
aclError aclrtCreateStream(aclrtStream* stream) { return aclrtCreateStreamWithConfig(stream, 0, 0); }
aclError aclrtDestroyStream(aclrtStream stream) {
  delete static_cast<Stream*>(stream);
  return ACL_SUCCESS;
}
aclError aclrtDestroyStreamForce(aclrtStream stream) { return aclrtDestroyStream(stream); }
aclError aclrtSynchronizeStream(aclrtStream) { return waited(); }
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream, int32_t) { return waited(); }
aclError aclrtStreamQuery(aclrtStream, aclrtStreamStatus* status) {
  *status = ACL_STREAM_STATUS_COMPLETE;
  return ACL_SUCCESS;
}
aclError aclrtStreamGetId(aclrtStream stream, int32_t* id) {
  *id = static_cast<Stream*>(stream)->id;
  return ACL_SUCCESS;
}
aclError aclrtSetStreamFailureMode(aclrtStream, uint64_t) { return ACL_SUCCESS; }
aclError aclrtStreamWaitEvent(aclrtStream, aclrtEvent) { return ACL_SUCCESS; }
aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t) {
  *event = new Event{};
  return ACL_SUCCESS;
}
aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t flag) { return aclrtCreateEventWithFlag(event, flag); }
aclError aclrtDestroyEvent(aclrtEvent event) {
  delete static_cast<Event*>(event);
  return ACL_SUCCESS;
}
aclError aclrtRecordEvent(aclrtEvent event, aclrtStream) {
  static_cast<Event*>(event)->milliseconds = now();
  return ACL_SUCCESS;
}
aclError aclrtResetEvent(aclrtEvent, aclrtStream) { return ACL_SUCCESS; }
aclError aclrtSynchronizeEvent(aclrtEvent) { return waited(); }
aclError aclrtQueryEventStatus(aclrtEvent, aclrtEventRecordedStatus* status) {
  *status = ACL_EVENT_RECORDED_STATUS_COMPLETE;
  return ACL_SUCCESS;
}
aclError aclrtQueryEventWaitStatus(aclrtEvent, aclrtEventWaitStatus* status) {
  *status = ACL_EVENT_WAIT_STATUS_COMPLETE;
  return ACL_SUCCESS;
}
aclError aclrtEventElapsedTime(float* milliseconds, aclrtEvent from, aclrtEvent to) {
  *milliseconds = static_cast<float>(static_cast<Event*>(to)->milliseconds - static_cast<Event*>(from)->milliseconds);
  return ACL_SUCCESS;
}
aclError aclrtEventGetTimestamp(aclrtEvent event, uint64_t* microseconds) {
  *microseconds = static_cast<uint64_t>(static_cast<Event*>(event)->milliseconds * 1000);
  return ACL_SUCCESS;
}
aclError aclrtSubscribeReport(uint64_t, aclrtStream) { return ACL_SUCCESS; }
aclError aclrtUnSubscribeReport(uint64_t, aclrtStream) { return ACL_SUCCESS; }
aclError aclrtProcessReport(int32_t) { return ACL_SUCCESS; }
aclError aclrtLaunchCallback(aclrtCallback callback, void* data, aclrtCallbackBlockType, aclrtStream) {
  callback(data);
  return ACL_SUCCESS;
}
}
