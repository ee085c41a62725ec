// What op-plugin offers in one kernel: norms, rotary embedding, SwiGLU. They compute in fp32, as the device's do. What
// CANN's pages on them exclude for A2 and A3 is refused: https://gitcode.com/cann/ops-nn and ops-transformer, docs of
// each operator, and torch_npu's pages, https://gitcode.com/Ascend/op-plugin, docs/zh/custom_APIs/torch_npu.
#include "../aclnn.h"

using namespace simulated;

namespace {
at::Tensor f32(T a) { return t(a).to(at::kFloat); }
void need_same_type(T a, T b) { TORCH_CHECK(t(a).scalar_type() == t(b).scalar_type(), "the types differ"); }
// A weight has the type of the input, or is fp32.
void need_type_of_weight(T x, T weight) {
  if (t(weight).scalar_type() != at::kFloat) need_same_type(x, weight);
}
// x is (batch, heads, tokens, width), cosine and sine (1 or batch, 1, tokens, width), or of the shape of x.
void need_rotation(T x, T cosine, T sine) {
  need_same_type(x, cosine);
  need_same_type(x, sine);
  auto a = t(x), c = t(cosine);
  TORCH_CHECK(a.dim() == 4 && c.dim() == 4 && c.sizes() == t(sine).sizes(), "no four dimensions");
  TORCH_CHECK(a.size(3) < 896 && a.size(3) % 2 == 0 && a.size(0) < 1000 && a.size(1) < 1000, "a dimension too long");
  TORCH_CHECK(c.sizes() == a.sizes() || (c.size(1) == 1 && c.size(2) == a.size(2) && c.size(3) == a.size(3) &&
                                         (c.size(0) == 1 || c.size(0) == a.size(0))),
              "angles of another shape");
}
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
  need_type_of_weight(x, g);
  auto r = at::rsqrt(f32(x).pow(2).mean(-1, true) + eps);
  put(y, f32(x) * r * f32(g));
  put(rstd, r);
})
OP(RmsNormGrad, (T dy, T x, T rstd, T g, T dx, T dg, PLAN), {
  need_same_type(dy, x);
  need_type_of_weight(x, g);
  TORCH_CHECK(t(rstd).scalar_type() == at::kFloat && t(dg).scalar_type() == at::kFloat, "these are fp32");
  auto normed = f32(x) * f32(rstd);
  auto dn = f32(dy) * f32(g);
  put(dx, f32(rstd) * (dn - normed * (dn * normed).mean(-1, true)));
  put(dg, (f32(dy) * normed).reshape({-1, t(g).numel()}).sum(0));
})

// Mode 0 pairs an element with the one half a head away, mode 1 with its neighbour.
OP(RotaryPositionEmbedding, (T x, T cosine, T sine, int64_t mode, T o, PLAN), {
  need_rotation(x, cosine, sine);
  auto turned = mode == 0 ? half_turn(t(x)) : half_turn_of_pairs(t(x));
  put(o, t(x) * t(cosine) + turned * t(sine));
})
OP(RotaryPositionEmbeddingGrad, (T g, T cosine, T sine, T x, int64_t mode, T dx, T dcosine, T dsine, PLAN), {
  need_rotation(g, cosine, sine);
  TORCH_CHECK(mode == 0, "the gradient of interleaved rotary embedding is not simulated");
  put(dx, t(g) * t(cosine) + half_turn_back(t(g) * t(sine)));
  // Without x, which is optional, only the gradient of x is asked for.
  bool has_x = x && t(x).defined() && t(x).numel();
  if (has_x && dcosine && t(dcosine).numel()) put(dcosine, at::sum_to(t(g) * t(x), t(dcosine).sizes()));
  if (has_x && dsine && t(dsine).numel()) put(dsine, at::sum_to(t(g) * half_turn(t(x)), t(dsine).sizes()));
})

OP(SwiGlu, (T x, int64_t d, T o, PLAN), {
  TORCH_CHECK(t(x).is_contiguous() && t(x).numel(), "x is empty, or not contiguous");
  auto halves = t(x).chunk(2, d);
  put(o, at::silu(halves[0]) * halves[1]);
})
OP(SwiGluGrad, (T g, T x, int64_t d, T o, PLAN), {
  need_same_type(g, x);
  TORCH_CHECK(t(x).is_contiguous() && t(g).is_contiguous() && t(x).numel(), "x is empty, or not contiguous");
  auto halves = t(x).chunk(2, d);
  put(o, at::cat({at::silu_backward(t(g) * halves[1], halves[0]), t(g) * at::silu(halves[0])}, d));
})

OP(LayerNorm, (T x, Ints shape, T w, T b, double eps, T o, T mean, T rstd, PLAN), {
  for (auto each : {w, b})
    if (t(each).defined()) need_type_of_weight(x, each);
  auto [y, m, r] = at::native_layer_norm(t(x), ints(shape), t(w), t(b), eps);
  put(o, y);
  put(mean, m);
  put(rstd, r);
})
OP(LayerNormBackward, (T g, T x, Ints shape, T mean, T rstd, T w, T b, Bools wanted, T dx, T dw, T db, PLAN), {
  need_same_type(g, x);
  std::array<bool, 3> mask{!!wanted->values[0], !!wanted->values[1], !!wanted->values[2]};
  auto [x_, w_, b_] = at::native_layer_norm_backward(t(g), t(x), ints(shape), t(mean), t(rstd), t(w), t(b), mask);
  if (mask[0]) put(dx, x_);
  if (mask[1]) put(dw, w_);
  if (mask[2]) put(db, b_);
})
