// Matrix products. The real cube unit has no float64 or integer path, and neither has this one.
#include "../aclnn.h"

using namespace simulated;

namespace {
void need(T a) {
  auto type = a->value.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kHalf || type == at::kBFloat16, "no matrix product of ", type);
}
bool given(Tensors tensors) { return tensors && !tensors->values.empty(); }
// Where each group ends, from sums (type 0) or counts (type 1).
std::vector<int64_t> ends(const at::Tensor& groups, int64_t type) {
  auto sums = type == 0 ? groups : groups.cumsum(0);
  auto* first = sums.contiguous().data_ptr<int64_t>();
  return {first, first + sums.numel()};
}
// Rows of x, or of the sum over them, in groups. The limits are those of CANN's page on aclnnGroupedMatmulV5 for Atlas
// A2 and A3: https://gitcode.com/cann/ops-transformer, gmm/grouped_matmul/docs.
void multiply_by_group(T x, T weight, T groups, int64_t type, int64_t list_type, T out) {
  auto a = t(x), b = t(weight), y = t(out), list = t(groups);
  need(x);
  TORCH_CHECK(a.scalar_type() == b.scalar_type() && a.scalar_type() == y.scalar_type(), "types differ");
  TORCH_CHECK(list.scalar_type() == at::kLong && list.dim() == 1 && list.numel() > 1 && list.numel() <= 1024,
              "a list of groups that the operator does not take");
  // Of a transposed x the last dimension in memory is the first one.
  TORCH_CHECK(a.dim() == 2 && a.size(type == 0) < 65536 && b.size(-1) < 65536, "x is no matrix, or a dimension too long");
  bool is_turned = a.stride(0) == 1 && a.stride(1) == a.size(0) && !a.is_contiguous();
  auto end = ends(list, list_type);
  if (type == 0) {
    TORCH_CHECK(a.is_contiguous(), "x is transposed");
    TORCH_CHECK(b.dim() == 3 && b.size(0) == list.numel() && end.back() <= a.size(0), "groups and weight differ");
  } else {
    TORCH_CHECK(type == 2 && is_turned, "x is not transposed");
    TORCH_CHECK(b.dim() == 2 && b.is_contiguous() && y.dim() == 3 && end.back() <= a.size(1), "no sum to divide");
  }
  int64_t begin = 0;
  for (size_t i = 0; i < end.size(); begin = end[i++]) {
    int64_t rows = end[i] - begin;
    if (type == 0)
      y.narrow(0, begin, rows).copy_(at::mm(a.narrow(0, begin, rows), b[i]));
    else
      y[i].copy_(at::mm(a.narrow(1, begin, rows), b.narrow(0, begin, rows)));
  }
  changed(out);
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
OP(Baddbmm, (T c, T a, T b, S be, S al, T o, int8_t, PLAN), {
  need(a);
  put(o, at::baddbmm(t(c), t(a), t(b), s(be), s(al)));
})

// Before it uses the fifth, torch_npu asks whether there is a fourth.
OP(GroupedMatmulV4,
   (Tensors, Tensors, Tensors, Tensors, Tensors, Tensors, Tensors, Tensors, T, Tensors, Tensors, Tensors, int64_t, int64_t,
    int64_t, int64_t, Tensors, Tensors, Tensors, PLAN),
   { TORCH_CHECK(false, "only the fifth version is simulated"); })
OP(GroupedMatmulV5,
   (Tensors x, Tensors w, Tensors bias, Tensors scale, Tensors offset, Tensors antiquant_scale, Tensors antiquant_offset,
    Tensors per_token_scale, T groups, Tensors activation_input, Tensors activation_scale, Tensors activation_offset,
    int64_t split_item, int64_t group_type, int64_t list_type, int64_t activation, Ints tuning, Tensors out,
    Tensors activation_out, Tensors dynamic_scale_out, PLAN),
   {
     for (auto* each : {bias, scale, offset, antiquant_scale, antiquant_offset, per_token_scale, activation_input,
                        activation_scale, activation_offset, activation_out, dynamic_scale_out})
       TORCH_CHECK(!given(each), "a grouped matrix product with more than x and weight is not simulated");
     TORCH_CHECK(activation == 0 && list_type <= 1 && split_item >= 2, "this grouped matrix product is not simulated");
     TORCH_CHECK(x->values.size() == 1 && w->values.size() == 1 && out->values.size() == 1, "too many tensors");
     multiply_by_group(x->values[0], w->values[0], groups, group_type, list_type, out->values[0]);
   })
