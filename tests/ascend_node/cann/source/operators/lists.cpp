// Operators over lists of tensors (torch._foreach_*). A list is of one type, as CANN's pages on them ask:
// https://gitcode.com/cann/ops-nn, foreach/*/docs.
#include "../aclnn.h"

using namespace simulated;

namespace {
at::Tensor nth(Tensors tensors, size_t i) { return t(tensors->values[i]); }
template <class F>
void each(Tensors inputs, Tensors outputs, F compute) {
  for (auto& x : list(inputs)) TORCH_CHECK(x.scalar_type() == nth(inputs, 0).scalar_type(), "the types differ");
  for (size_t i = 0; i < inputs->values.size(); i++) put(outputs->values[i], compute(i));
}
}  // namespace

OP(ForeachAddScalarV2, (Tensors a, S v, Tensors o, PLAN), { each(a, o, [&](size_t i) { return nth(a, i) + s(v); }); })
OP(ForeachAddListV2, (Tensors a, Tensors b, S al, Tensors o, PLAN),
   { each(a, o, [&](size_t i) { return at::add(nth(a, i), nth(b, i), s(al)); }); })
OP(ForeachSubListV2, (Tensors a, Tensors b, S al, Tensors o, PLAN),
   { each(a, o, [&](size_t i) { return at::sub(nth(a, i), nth(b, i), s(al)); }); })
OP(ForeachSubScalarV2, (Tensors a, S v, Tensors o, PLAN), { each(a, o, [&](size_t i) { return nth(a, i) - s(v); }); })
OP(ForeachMulScalarV2, (Tensors a, S v, Tensors o, PLAN), { each(a, o, [&](size_t i) { return nth(a, i) * s(v); }); })
OP(ForeachMulScalar, (Tensors a, T v, Tensors o, PLAN),
   { each(a, o, [&](size_t i) { return nth(a, i) * t(v).item(); }); })
OP(ForeachMulList, (Tensors a, Tensors b, Tensors o, PLAN),
   { each(a, o, [&](size_t i) { return nth(a, i) * nth(b, i); }); })
OP(ForeachDivList, (Tensors a, Tensors b, Tensors o, PLAN),
   { each(a, o, [&](size_t i) { return nth(a, i) / nth(b, i); }); })
OP(ForeachDivScalarV2, (Tensors a, S v, Tensors o, PLAN), { each(a, o, [&](size_t i) { return nth(a, i) / s(v); }); })
OP(ForeachDivScalarList, (Tensors a, Scalars v, Tensors o, PLAN),
   { each(a, o, [&](size_t i) { return nth(a, i) / s(v->values[i]); }); })
OP(ForeachLerpScalar, (Tensors a, Tensors b, S w, Tensors o, PLAN),
   { each(a, o, [&](size_t i) { return at::lerp(nth(a, i), nth(b, i), s(w)); }); })
OP(ForeachSqrt, (Tensors a, Tensors o, PLAN), { each(a, o, [&](size_t i) { return nth(a, i).sqrt(); }); })
OP(ForeachReciprocal, (Tensors a, Tensors o, PLAN), { each(a, o, [&](size_t i) { return nth(a, i).reciprocal(); }); })
OP(ForeachNeg, (Tensors a, Tensors o, PLAN), { each(a, o, [&](size_t i) { return -nth(a, i); }); })
OP(ForeachNorm, (Tensors a, S p, Tensors o, PLAN), { each(a, o, [&](size_t i) { return nth(a, i).norm(s(p)); }); })
OP(ForeachAddcmulScalarV2, (Tensors a, Tensors b, Tensors c, S v, Tensors o, PLAN),
   { each(a, o, [&](size_t i) { return at::addcmul(nth(a, i), nth(b, i), nth(c, i), s(v)); }); })
OP(ForeachAddcdivScalarV2, (Tensors a, Tensors b, Tensors c, S v, Tensors o, PLAN),
   { each(a, o, [&](size_t i) { return at::addcdiv(nth(a, i), nth(b, i), nth(c, i), s(v)); }); })
OP(ForeachAddcdivScalarList, (Tensors a, Tensors b, Tensors c, T v, Tensors o, PLAN),
   { each(a, o, [&](size_t i) { return at::addcdiv(nth(a, i), nth(b, i), nth(c, i), t(v)[(int64_t)i].item()); }); })
OP(ForeachCopy, (Tensors a, Tensors b, PLAN), {
  for (size_t i = 0; i < a->values.size(); i++) nth(b, i).copy_(nth(a, i));
})
OP(ForeachZeroInplace, (Tensors a, PLAN), {
  for (auto* x : a->values) t(x).zero_();
})
