// What op-plugin offers in one kernel: norms, rotary embedding, SwiGLU. They compute in fp32, as the device's do.
#include "../aclnn.h"

using namespace simulated;

namespace {
at::Tensor f32(T a) { return t(a).to(at::kFloat); }
// (-second half, first half): the partner of each element in a rotation.
at::Tensor half_turn(const at::Tensor& x) {
  auto halves = x.chunk(2, -1);
  return at::cat({-halves[1], halves[0]}, -1);
}
at::Tensor half_turn_back(const at::Tensor& x) {
  auto halves = x.chunk(2, -1);
  return at::cat({halves[1], -halves[0]}, -1);
}
at::Tensor half_turn_of_pairs(const at::Tensor& x) {
  auto pairs = x.unflatten(-1, {-1, 2});
  return at::stack({-pairs.select(-1, 1), pairs.select(-1, 0)}, -1).flatten(-2);
}
}  // namespace

OP(RmsNorm, (T x, T g, double eps, T y, T rstd, PLAN), {
  auto r = at::rsqrt(f32(x).pow(2).mean(-1, true) + eps);
  put(y, f32(x) * r * f32(g));
  put(rstd, r);
})
OP(RmsNormGrad, (T dy, T x, T rstd, T g, T dx, T dg, PLAN), {
  auto normed = f32(x) * f32(rstd);
  auto dn = f32(dy) * f32(g);
  put(dx, f32(rstd) * (dn - normed * (dn * normed).mean(-1, true)));
  put(dg, (f32(dy) * normed).reshape({-1, t(g).numel()}).sum(0));
})

// Mode 0 pairs an element with the one half a head away, mode 1 with its neighbour.
OP(RotaryPositionEmbedding, (T x, T cosine, T sine, int64_t mode, T o, PLAN), {
  auto turned = mode == 0 ? half_turn(t(x)) : half_turn_of_pairs(t(x));
  put(o, t(x) * t(cosine) + turned * t(sine));
})
OP(RotaryPositionEmbeddingGrad, (T g, T cosine, T sine, T x, int64_t mode, T dx, T dcosine, T dsine, PLAN), {
  TORCH_CHECK(mode == 0, "the gradient of interleaved rotary embedding is not simulated");
  put(dx, t(g) * t(cosine) + half_turn_back(t(g) * t(sine)));
  // Without x, which is optional, only the gradient of x is asked for.
  bool has_x = x && t(x).defined() && t(x).numel();
  if (has_x && dcosine && t(dcosine).numel()) put(dcosine, at::sum_to(t(g) * t(x), t(dcosine).sizes()));
  if (has_x && dsine && t(dsine).numel()) put(dsine, at::sum_to(t(g) * half_turn(t(x)), t(dsine).sizes()));
})

OP(SwiGlu, (T x, int64_t d, T o, PLAN), {
  auto halves = t(x).chunk(2, d);
  put(o, at::silu(halves[0]) * halves[1]);
})
OP(SwiGluGrad, (T g, T x, int64_t d, T o, PLAN), {
  auto halves = t(x).chunk(2, d);
  put(o, at::cat({at::silu_backward(t(g) * halves[1], halves[0]), t(g) * at::silu(halves[0])}, d));
})

OP(LayerNorm, (T x, Ints shape, T w, T b, double eps, T o, T mean, T rstd, PLAN), {
  auto [y, m, r] = at::native_layer_norm(t(x), ints(shape), t(w), t(b), eps);
  put(o, y);
  put(mean, m);
  put(rstd, r);
})
OP(LayerNormBackward, (T g, T x, Ints shape, T mean, T rstd, T w, T b, Bools wanted, T dx, T dw, T db, PLAN), {
  std::array<bool, 3> mask{!!wanted->values[0], !!wanted->values[1], !!wanted->values[2]};
  auto [x_, w_, b_] = at::native_layer_norm_backward(t(g), t(x), ints(shape), t(mean), t(rstd), t(w), t(b), mask);
  if (mask[0]) put(dx, x_);
  if (mask[1]) put(dw, w_);
  if (mask[2]) put(db, b_);
})
