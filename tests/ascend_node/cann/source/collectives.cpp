// Simulated libhccl: collectives between processes of one machine, through one shared-memory segment a communicator.
//
// The segment has a slot for every rank, a mailbox for every pair, and a barrier. Everything runs when it is called.
#include <fcntl.h>
#include <hccl/hccl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {
constexpr size_t kSlot = 4 << 20, kMailbox = 1 << 20, kMaxRanks = 8;
constexpr uint64_t kSpins = 2000, kPatience = 2400000;  // of 50 µs each: two minutes

struct Mailbox {
  std::atomic<uint32_t> full;
  char padding[60];
  char data[kMailbox];
};
struct Segment {
  std::atomic<uint32_t> arrived, phase;
  char padding[248];
  Mailbox mail[kMaxRanks * kMaxRanks];
  char slot[kMaxRanks][kSlot];
};
struct Communicator {
  Segment* segment;
  uint32_t size, rank, phase;
  std::string name;

  char* slot(uint32_t of) const { return segment->slot[of]; }
  char* slot() const { return segment->slot[rank]; }
  Mailbox& mail(uint32_t from, uint32_t to) const { return segment->mail[from * kMaxRanks + to]; }
};
Communicator* of(HcclComm comm) { return static_cast<Communicator*>(comm); }

void wait_until(std::atomic<uint32_t>& value, uint32_t wanted) {
  for (uint64_t i = 0; value.load(std::memory_order_acquire) != wanted; i++) {
    i < kSpins ? (void)sched_yield() : (void)usleep(50);
    if (i > kPatience) {
      fprintf(stderr, "SIMULATED NPU: a rank waited two minutes for the others\n");
      abort();
    }
  }
}
void barrier(Communicator* c) {
  c->phase ^= 1;
  if (c->segment->arrived.fetch_add(1) + 1 < c->size) return wait_until(c->segment->phase, c->phase);
  c->segment->arrived = 0;
  c->segment->phase.store(c->phase, std::memory_order_release);
}
HcclResult join(const std::string& name, uint32_t size, uint32_t rank, HcclComm* comm) {
  if (size > kMaxRanks) return HCCL_E_NOT_SUPPORT;
  int file = shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, sizeof(Segment))) return HCCL_E_MEMORY;
  void* memory = mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return HCCL_E_MEMORY;
  auto* c = new Communicator{static_cast<Segment*>(memory), size, rank, 0, name};
  barrier(c);
  if (rank == 0) shm_unlink(name.c_str());  // all are in: the memory lives as long as they do
  *comm = c;
  return HCCL_SUCCESS;
}

size_t bytes_of(HcclDataType type) {
  switch (type) {
    case HCCL_DATA_TYPE_INT8:
    case HCCL_DATA_TYPE_UINT8:
      return 1;
    case HCCL_DATA_TYPE_INT16:
    case HCCL_DATA_TYPE_UINT16:
    case HCCL_DATA_TYPE_FP16:
    case HCCL_DATA_TYPE_BFP16:
      return 2;
    case HCCL_DATA_TYPE_INT64:
    case HCCL_DATA_TYPE_UINT64:
    case HCCL_DATA_TYPE_FP64:
      return 8;
    default:
      return 4;
  }
}

// 16-bit floats, reduced in fp32.
struct Bf16 {
  uint16_t bits;
  operator float() const {
    uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
  }
  Bf16& operator=(float value) {
    uint32_t wide;
    memcpy(&wide, &value, 4);
    bool is_nan = (wide & 0x7fffffff) > 0x7f800000;
    bits = is_nan ? 0x7fc0 : (wide + 0x7fff + ((wide >> 16) & 1)) >> 16;
    return *this;
  }
};

template <class Value>
Value combine(HcclReduceOp op, Value a, Value b) {
  switch (op) {
    case HCCL_REDUCE_SUM:
      return a + b;
    case HCCL_REDUCE_PROD:
      return a * b;
    case HCCL_REDUCE_MAX:
      return std::max(a, b);
    default:
      return std::min(a, b);
  }
}
// Always in the order of ranks, so that every rank gets the same bits.
template <class Stored, class Value = Stored>
HcclResult reduce_as(const std::vector<const char*>& inputs, char* output, size_t count, HcclReduceOp op) {
  for (size_t i = 0; i < count; i++) {
    auto element = [&](size_t rank) { return static_cast<Value>(reinterpret_cast<const Stored*>(inputs[rank])[i]); };
    Value value = element(0);
    for (size_t rank = 1; rank < inputs.size(); rank++) value = combine<Value>(op, value, element(rank));
    reinterpret_cast<Stored*>(output)[i] = value;
  }
  return HCCL_SUCCESS;
}
HcclResult reduce(HcclDataType type, const std::vector<const char*>& inputs, char* output, size_t count,
                  HcclReduceOp op) {
  switch (type) {
    case HCCL_DATA_TYPE_FP32:
      return reduce_as<float>(inputs, output, count, op);
    case HCCL_DATA_TYPE_FP16:
      return reduce_as<_Float16, float>(inputs, output, count, op);
    case HCCL_DATA_TYPE_BFP16:
      return reduce_as<Bf16, float>(inputs, output, count, op);
    case HCCL_DATA_TYPE_INT8:
      return reduce_as<int8_t>(inputs, output, count, op);
    case HCCL_DATA_TYPE_INT16:
      return reduce_as<int16_t>(inputs, output, count, op);
    case HCCL_DATA_TYPE_INT32:
      return reduce_as<int32_t>(inputs, output, count, op);
    case HCCL_DATA_TYPE_INT64:
      return reduce_as<int64_t>(inputs, output, count, op);
    default:  // the real HCCL reduces neither uint8 nor fp64
      fprintf(stderr, "SIMULATED NPU: HCCL does not reduce data type %d\n", static_cast<int>(type));
      return HCCL_E_NOT_SUPPORT;
  }
}
}  // namespace

extern "C" {
// Communicators
HcclResult HcclGetRootInfo(HcclRootInfo* info) {
  std::random_device draw;
  memset(info, 0, sizeof *info);
  snprintf(reinterpret_cast<char*>(info), 64, "/simulated-hccl-%d-%08x%08x", getpid(), draw(), draw());
  return HCCL_SUCCESS;
}
HcclResult HcclCommInitRootInfo(uint32_t size, const HcclRootInfo* info, uint32_t rank, HcclComm* comm) {
  return join(reinterpret_cast<const char*>(info), size, rank, comm);
}
HcclResult HcclCommInitRootInfoConfig(uint32_t size, const HcclRootInfo* info, uint32_t rank, const HcclCommConfig*,
                                      HcclComm* comm) {
  return HcclCommInitRootInfo(size, info, rank, comm);
}
HcclResult HcclCreateSubCommConfig(HcclComm* comm, uint32_t size, uint32_t*, uint64_t id, uint32_t rank,
                                   HcclCommConfig*, HcclComm* sub) {
  return join(of(*comm)->name + "-" + std::to_string(id), size, rank, sub);
}
HcclResult HcclCommDestroy(HcclComm comm) {
  munmap(of(comm)->segment, sizeof(Segment));
  delete of(comm);
  return HCCL_SUCCESS;
}
HcclResult HcclCommResume(HcclComm) { return HCCL_SUCCESS; }
HcclResult HcclGetCommName(HcclComm comm, char* name) {
  strncpy(name, of(comm)->name.c_str(), 127);
  return HCCL_SUCCESS;
}
HcclResult HcclGetCommAsyncError(HcclComm, HcclResult* error) {
  *error = HCCL_SUCCESS;
  return HCCL_SUCCESS;
}
uint32_t HcclGetCommConfigCapability() { return 6; }
HcclResult HcclSetConfig(HcclConfig, HcclConfigValue) { return HCCL_SUCCESS; }
HcclResult HcclGetRankSize(HcclComm comm, uint32_t* size) {
  *size = of(comm)->size;
  return HCCL_SUCCESS;
}
HcclResult HcclGetRankId(HcclComm comm, uint32_t* rank) {
  *rank = of(comm)->rank;
  return HCCL_SUCCESS;
}
const char* HcclGetErrorString(HcclResult) { return "SIMULATED HCCL error"; }

// Collectives: what does not fit a slot goes in parts.
HcclResult HcclBarrier(HcclComm comm, aclrtStream) {
  barrier(of(comm));
  return HCCL_SUCCESS;
}
HcclResult HcclAllReduce(void* in, void* out, uint64_t count, HcclDataType type, HcclReduceOp op, HcclComm comm,
                         aclrtStream) {
  auto* c = of(comm);
  size_t bytes = bytes_of(type), part = kSlot / bytes;
  HcclResult result = HCCL_SUCCESS;
  for (uint64_t begin = 0; begin < count; begin += part) {
    size_t n = std::min<uint64_t>(part, count - begin);
    memcpy(c->slot(), static_cast<char*>(in) + begin * bytes, n * bytes);
    barrier(c);
    std::vector<const char*> inputs;
    for (uint32_t rank = 0; rank < c->size; rank++) inputs.push_back(c->slot(rank));
    result = reduce(type, inputs, static_cast<char*>(out) + begin * bytes, n, op);
    barrier(c);
  }
  return result;
}
HcclResult HcclReduce(void* in, void* out, uint64_t count, HcclDataType type, HcclReduceOp op, uint32_t root,
                      HcclComm comm, aclrtStream stream) {
  std::vector<char> everywhere(count * bytes_of(type));
  auto result = HcclAllReduce(in, everywhere.data(), count, type, op, comm, stream);
  if (of(comm)->rank == root) memcpy(out, everywhere.data(), everywhere.size());
  return result;
}
HcclResult HcclBroadcast(void* buffer, uint64_t count, HcclDataType type, uint32_t root, HcclComm comm, aclrtStream) {
  auto* c = of(comm);
  size_t total = count * bytes_of(type);
  for (size_t begin = 0; begin < total; begin += kSlot) {
    char* place = static_cast<char*>(buffer) + begin;
    size_t n = std::min(kSlot, total - begin);
    if (c->rank == root) memcpy(c->slot(root), place, n);
    barrier(c);
    if (c->rank != root) memcpy(place, c->slot(root), n);
    barrier(c);
  }
  return HCCL_SUCCESS;
}
HcclResult HcclAllGather(void* in, void* out, uint64_t count, HcclDataType type, HcclComm comm, aclrtStream) {
  auto* c = of(comm);
  size_t total = count * bytes_of(type);
  for (size_t begin = 0; begin < total; begin += kSlot) {
    size_t n = std::min(kSlot, total - begin);
    memcpy(c->slot(), static_cast<char*>(in) + begin, n);
    barrier(c);
    for (uint32_t rank = 0; rank < c->size; rank++)
      memcpy(static_cast<char*>(out) + rank * total + begin, c->slot(rank), n);
    barrier(c);
  }
  return HCCL_SUCCESS;
}
HcclResult HcclAllGatherV(void* in, uint64_t count, void* out, const void* counts, const void* offsets,
                          HcclDataType type, HcclComm comm, aclrtStream stream) {
  auto* c = of(comm);
  for (uint32_t rank = 0; rank < c->size; rank++) {
    char* place = static_cast<char*>(out) + static_cast<const uint64_t*>(offsets)[rank] * bytes_of(type);
    if (rank == c->rank) memmove(place, in, count * bytes_of(type));
    HcclBroadcast(place, static_cast<const uint64_t*>(counts)[rank], type, rank, comm, stream);
  }
  return HCCL_SUCCESS;
}
HcclResult HcclReduceScatterV(void* in, const void* counts, const void* offsets, void* out, uint64_t, HcclDataType type,
                              HcclReduceOp op, HcclComm comm, aclrtStream stream) {
  auto* c = of(comm);
  size_t bytes = bytes_of(type);
  HcclResult result = HCCL_SUCCESS;
  for (uint32_t rank = 0; rank < c->size; rank++) {
    uint64_t count = static_cast<const uint64_t*>(counts)[rank];
    std::vector<char> reduced(count * bytes);
    char* place = static_cast<char*>(in) + static_cast<const uint64_t*>(offsets)[rank] * bytes;
    result = HcclAllReduce(place, reduced.data(), count, type, op, comm, stream);
    if (rank == c->rank) memcpy(out, reduced.data(), reduced.size());
  }
  return result;
}
HcclResult HcclReduceScatter(void* in, void* out, uint64_t count, HcclDataType type, HcclReduceOp op, HcclComm comm,
                             aclrtStream stream) {
  std::vector<uint64_t> counts(of(comm)->size, count), offsets;
  for (uint32_t rank = 0; rank < of(comm)->size; rank++) offsets.push_back(rank * count);
  return HcclReduceScatterV(in, counts.data(), offsets.data(), out, count, type, op, comm, stream);
}
HcclResult HcclScatter(void* in, void* out, uint64_t count, HcclDataType type, uint32_t root, HcclComm comm,
                       aclrtStream stream) {
  size_t total = count * bytes_of(type);
  for (uint32_t rank = 0; rank < of(comm)->size; rank++) {
    std::vector<char> share(total);
    if (of(comm)->rank == root) memcpy(share.data(), static_cast<char*>(in) + rank * total, total);
    HcclBroadcast(share.data(), count, type, root, comm, stream);
    if (of(comm)->rank == rank) memcpy(out, share.data(), total);
  }
  return HCCL_SUCCESS;
}

// Between pairs
HcclResult HcclSend(void* buffer, uint64_t count, HcclDataType type, uint32_t to, HcclComm comm, aclrtStream) {
  auto& mail = of(comm)->mail(of(comm)->rank, to);
  size_t total = count * bytes_of(type);
  for (size_t begin = 0; begin < total; begin += kMailbox) {
    wait_until(mail.full, 0);
    memcpy(mail.data, static_cast<char*>(buffer) + begin, std::min(kMailbox, total - begin));
    mail.full.store(1, std::memory_order_release);
  }
  return HCCL_SUCCESS;
}
HcclResult HcclRecv(void* buffer, uint64_t count, HcclDataType type, uint32_t from, HcclComm comm, aclrtStream) {
  auto& mail = of(comm)->mail(from, of(comm)->rank);
  size_t total = count * bytes_of(type);
  for (size_t begin = 0; begin < total; begin += kMailbox) {
    wait_until(mail.full, 1);
    memcpy(static_cast<char*>(buffer) + begin, mail.data, std::min(kMailbox, total - begin));
    mail.full.store(0, std::memory_order_release);
  }
  return HCCL_SUCCESS;
}
HcclResult HcclBatchSendRecv(HcclSendRecvItem* items, uint32_t count, HcclComm comm, aclrtStream stream) {
  for (auto* item = items; item < items + count; item++)
    if (item->sendRecvType == HCCL_SEND)
      HcclSend(item->buf, item->count, item->dataType, item->remoteRank, comm, stream);
  for (auto* item = items; item < items + count; item++)
    if (item->sendRecvType == HCCL_RECV)
      HcclRecv(item->buf, item->count, item->dataType, item->remoteRank, comm, stream);
  return HCCL_SUCCESS;
}
HcclResult HcclAlltoAllV(const void* in, const void* send_counts, const void* send_offsets, HcclDataType type,
                         const void* out, const void* receive_counts, const void* receive_offsets, HcclDataType,
                         HcclComm comm, aclrtStream) {
  auto* c = of(comm);
  auto *sends = static_cast<const uint64_t*>(send_counts), *from = static_cast<const uint64_t*>(send_offsets);
  auto *receives = static_cast<const uint64_t*>(receive_counts), *to = static_cast<const uint64_t*>(receive_offsets);
  size_t bytes = bytes_of(type), part = kSlot / bytes / c->size;
  // Every rank tells what it sends: the longest message says how many rounds there are, and both ends must agree.
  memcpy(c->slot(), sends, sizeof(uint64_t) * c->size);
  barrier(c);
  uint64_t longest = 0;
  bool agreed = true;
  for (uint32_t rank = 0; rank < c->size; rank++) {
    auto* told = reinterpret_cast<const uint64_t*>(c->slot(rank));
    longest = std::max(longest, *std::max_element(told, told + c->size));
    agreed &= told[c->rank] == receives[rank];
  }
  barrier(c);
  if (!agreed) return HCCL_E_PARA;
  for (uint64_t begin = 0; begin < longest; begin += part) {
    for (uint32_t rank = 0; rank < c->size; rank++)
      if (begin < sends[rank])
        memcpy(c->slot() + rank * part * bytes, static_cast<const char*>(in) + (from[rank] + begin) * bytes,
               std::min<uint64_t>(part, sends[rank] - begin) * bytes);
    barrier(c);
    for (uint32_t rank = 0; rank < c->size; rank++)
      if (begin < receives[rank])
        memcpy(static_cast<char*>(const_cast<void*>(out)) + (to[rank] + begin) * bytes,
               c->slot(rank) + c->rank * part * bytes, std::min<uint64_t>(part, receives[rank] - begin) * bytes);
    barrier(c);
  }
  return HCCL_SUCCESS;
}
HcclResult HcclAlltoAll(const void* in, uint64_t count, HcclDataType type, const void* out, uint64_t, HcclDataType,
                        HcclComm comm, aclrtStream stream) {
  std::vector<uint64_t> counts(of(comm)->size, count), offsets;
  for (uint32_t rank = 0; rank < of(comm)->size; rank++) offsets.push_back(rank * count);
  return HcclAlltoAllV(in, counts.data(), offsets.data(), type, out, counts.data(), offsets.data(), type, comm, stream);
}
}
