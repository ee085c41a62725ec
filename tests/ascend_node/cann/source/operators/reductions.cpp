// Operators that make one number of many, softmax and losses.
#include "../aclnn.h"

using namespace simulated;

OP(Equal, (T a, T b, T o, PLAN), { t(o).fill_(at::equal(t(a), t(b))); })
OP(Mean, (T a, Ints d, bool k, aclDataType dt, T o, PLAN), { put(o, at::mean(t(a), ints(d), k, type_of(dt))); })
OP(MeanV2, (T a, Ints d, bool k, bool, T o, PLAN), { put(o, at::mean(t(a), ints(d), k, t(o).scalar_type())); })
OP(ReduceSum, (T a, Ints d, bool k, aclDataType dt, T o, PLAN), { put(o, at::sum(t(a), ints(d), k, type_of(dt))); })
OP(LinalgVectorNorm, (T a, S p, Ints d, bool k, aclDataType dt, T o, PLAN),
   { put(o, at::linalg_vector_norm(t(a), s(p), dimensions(d), k, type_of(dt))); })
OP(All, (T a, Ints d, bool k, T o, PLAN), { put(o, at::all(t(a), ints(d), k)); })
OP(Any, (T a, Ints d, bool k, T o, PLAN), { put(o, at::any(t(a), ints(d), k)); })
OP(Max, (T a, T o, PLAN), { put(o, at::max(t(a))); })
OP(Min, (T a, T o, PLAN), { put(o, at::min(t(a))); })
OP(ArgMax, (T a, int64_t d, bool k, T o, PLAN), { put(o, at::argmax(t(a), d, k)); })
OP(Cumsum, (T a, int64_t d, aclDataType dt, T o, PLAN), { put(o, at::cumsum(t(a), d, type_of(dt))); })
OP(LogSoftmax, (T a, int64_t d, T o, PLAN), { put(o, at::log_softmax(t(a), d)); })
OP(LogSoftmaxBackward, (T g, T y, int64_t d, T o, PLAN),
   { put(o, at::_log_softmax_backward_data(t(g), t(y), d, t(g).scalar_type())); })
OP(Softmax, (T a, int64_t d, T o, PLAN), { put(o, at::softmax(t(a), d)); })
OP(SoftmaxBackward, (T g, T y, int64_t d, T o, PLAN),
   { put(o, at::_softmax_backward_data(t(g), t(y), d, t(g).scalar_type())); })
OP(NLLLoss, (T a, T y, T w, int64_t r, int64_t ig, T o, T tw, PLAN), {
  auto x = at::nll_loss_forward(t(a), t(y).to(at::kLong), t(w), r, ig);
  put(o, std::get<0>(x));
  put(tw, std::get<1>(x));
})
OP(NLLLossBackward, (T g, T a, T y, T w, int64_t r, int64_t ig, T tw, T o, PLAN),
   { put(o, at::nll_loss_backward(t(g), t(a), t(y).to(at::kLong), t(w), r, ig, t(tw))); })
OP(MaxDim, (T a, int64_t d, bool k, T v, T i, PLAN), {
  auto r = at::max(t(a), d, k);
  put(v, std::get<0>(r));
  put(i, std::get<1>(r));
})
OP(Amax, (T a, Ints d, bool k, T o, PLAN), { put(o, at::amax(t(a), ints(d), k)); })
OP(Std, (T a, Ints d, int64_t c, bool k, T o, PLAN),
   { put(o, at::std(t(a), at::OptionalIntArrayRef(ints(d)), at::Scalar(c), k)); })
OP(VarCorrection, (T a, Ints d, int64_t c, bool k, T o, PLAN),
   { put(o, at::var(t(a), at::OptionalIntArrayRef(ints(d)), at::Scalar(c), k)); })
OP(LogSumExp, (T a, Ints d, bool k, T o, PLAN), { put(o, at::logsumexp(t(a), ints(d), k)); })
OP(MinDim, (T a, int64_t d, bool k, T v, T i, PLAN), {
  auto r = at::min(t(a), d, k);
  put(v, std::get<0>(r));
  put(i, std::get<1>(r));
})
OP(ReduceNansum, (T a, Ints d, bool k, aclDataType dt, T o, PLAN),
   { put(o, at::nansum(t(a), ints(d), k, type_of(dt))); })
OP(Amin, (T a, Ints d, bool k, T o, PLAN), { put(o, at::amin(t(a), ints(d), k)); })
OP(Histc, (T a, int64_t bins, S low, S high, T o, PLAN),
   { put(o, at::histc(t(a).to(at::kFloat), bins, s(low), s(high))); })
OP(Dot, (T a, T b, T o, PLAN), { put(o, at::dot(t(a), t(b))); })
