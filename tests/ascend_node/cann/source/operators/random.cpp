// Random numbers. They are not those of a real device; the same seed and offset give the same ones.
#include "../aclnn.h"

using namespace simulated;

namespace {
at::Tensor bits() { return at::tensor({1, 2, 4, 8, 16, 32, 64, 128}, at::kByte); }
}  // namespace

OP(InplaceNormal, (T a, float m, float sd, int64_t seed, int64_t off, PLAN),
   { put(a, t(a).normal_(m, sd, generator(seed, off))); })
OP(InplaceUniform, (T a, double lo, double hi, int64_t seed, int64_t off, PLAN),
   { put(a, t(a).uniform_(lo, hi, generator(seed, off))); })
OP(InplaceRandom, (T a, int64_t lo, int64_t hi, int64_t seed, int64_t off, PLAN),
   { put(a, t(a).random_(lo, hi, generator(seed, off))); })
OP(InplaceBernoulli, (T a, S p, int64_t seed, int64_t off, PLAN),
   { put(a, t(a).bernoulli_(s(p).toDouble(), generator(seed, off))); })
// The mask is one bit an element, in bytes, rounded up.
OP(DropoutGenMaskV2, (Ints, double p, int64_t seed, int64_t offset, aclDataType, T o, PLAN), {
  auto kept = at::empty(t(o).numel() * 8, at::kFloat).uniform_(0, 1, generator(seed, offset)).ge(p).view({-1, 8});
  put(o, (kept.to(at::kByte) * bits()).sum(1).to(at::kByte));
})
OP(DropoutDoMask, (T a, T m, double p, T o, PLAN), {
  auto kept = t(m).reshape({-1, 1}).bitwise_and(bits()).ne(0).view(-1).narrow(0, 0, t(a).numel()).view(t(a).sizes());
  put(o, t(a) * kept.to(t(a).scalar_type()) / (1 - p));
})
OP(Multinomial, (T p, int64_t n, bool rep, int64_t seed, int64_t off, T o, PLAN),
   { put(o, at::multinomial(t(p), n, rep, generator(seed, off))); })
