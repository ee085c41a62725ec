// Matrix products. The real cube unit has no float64 or integer path, and neither has this one.
#include "../aclnn.h"

using namespace simulated;

namespace {
void need(T a) {
  auto type = a->value.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kHalf || type == at::kBFloat16, "no matrix product of ", type);
}
}  // namespace

OP(Mm, (T a, T b, T o, int8_t, PLAN), {
  need(a);
  put(o, at::mm(t(a), t(b)));
})
OP(Matmul, (T a, T b, T o, int8_t, PLAN), {
  need(a);
  put(o, at::matmul(t(a), t(b)));
})
OP(BatchMatMul, (T a, T b, T o, int8_t, PLAN), {
  need(a);
  put(o, at::bmm(t(a), t(b)));
})
OP(Addmm, (T c, T a, T b, S be, S al, T o, int8_t, PLAN), {
  need(a);
  put(o, at::addmm(t(c), t(a), t(b), s(be), s(al)));
})
