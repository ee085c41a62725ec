// Operators that choose, move and arrange elements.
#include "../aclnn.h"

using namespace simulated;

namespace {
// Dimensions without an index come as empty tensors.
c10::List<std::optional<at::Tensor>> indices(Tensors tensors) {
  c10::List<std::optional<at::Tensor>> result;
  for (auto& index : list(tensors))
    result.push_back(index.defined() && index.numel() ? std::optional<at::Tensor>(index) : std::nullopt);
  return result;
}
void without_reduction(int64_t reduce) { TORCH_CHECK(reduce == 0, "a scatter that reduces is not simulated"); }
}  // namespace

OP(Embedding, (T w, T i, T o, PLAN), { put(o, at::embedding(t(w), t(i))); })
OP(EmbeddingDenseBackward, (T g, T i, int64_t n, int64_t p, bool sc, T o, PLAN),
   { put(o, at::embedding_dense_backward(t(g), t(i), n, p, sc)); })
OP(Index, (T a, Tensors ix, T o, PLAN), {
  if (!t(o).numel()) return;
  put(o, at::index(t(a), indices(ix)));
})
OP(Cat, (Tensors l, int64_t d, T o, PLAN), { put(o, at::cat(list(l), d)); })
OP(Stack, (Tensors l, int64_t d, T o, PLAN), { put(o, at::stack(list(l), d)); })
OP(ConstantPadNd, (T a, Ints p, S v, T o, PLAN), { put(o, at::constant_pad_nd(t(a), ints(p), s(v))); })
OP(Gather, (T a, int64_t d, T i, T o, PLAN), { put(o, at::gather(t(a), d, t(i))); })
OP(Arange, (S a, S b, S c, T o, PLAN), { put(o, at::arange(s(a), s(b), s(c), t(o).options())); })
OP(Eye, (int64_t rows, int64_t columns, T o, PLAN), { put(o, at::eye(rows, columns, t(o).options())); })
OP(Triu, (T a, int64_t k, T o, PLAN), { put(o, at::triu(t(a), k)); })
OP(Tril, (T a, int64_t k, T o, PLAN), { put(o, at::tril(t(a), k)); })
OP(MaskedSelect, (T a, T m, T o, PLAN), { put_smaller(o, at::masked_select(t(a), t(m))); })
OP(Nonzero, (T a, T o, PLAN), { put_smaller(o, at::nonzero(t(a))); })
OP(Sort, (T a, bool st_, int64_t d, bool de, T v, T i, PLAN), {
  auto r = at::sort(t(a), st_, d, de);
  put(v, std::get<0>(r));
  put(i, std::get<1>(r));
})
OP(Topk, (T a, int64_t k, int64_t d, bool l, bool so, T v, T i, PLAN), {
  auto r = at::topk(t(a), k, d, l, so);
  put(v, std::get<0>(r));
  put(i, std::get<1>(r));
})
OP(Flip, (T a, Ints d, T o, PLAN), { put(o, at::flip(t(a), ints(d))); })
OP(Scatter, (T a, int64_t d, T i, T b, int64_t reduce, T o, PLAN), {
  without_reduction(reduce);
  put(o, at::scatter(t(a), d, t(i), t(b)));
})
OP(InplaceScatter, (T a, int64_t d, T i, T b, int64_t reduce, PLAN), {
  without_reduction(reduce);
  put(a, t(a).scatter_(d, t(i), t(b)));
})
OP(InplaceScatterValue, (T a, int64_t d, T i, S v, int64_t reduce, PLAN), {
  without_reduction(reduce);
  put(a, t(a).scatter_(d, t(i), s(v)));
})
OP(ScatterAdd, (T a, int64_t d, T i, T b, T o, PLAN), { put(o, at::scatter_add(t(a), d, t(i), t(b))); })
OP(IndexSelect, (T a, int64_t d, T i, T o, PLAN), { put(o, at::index_select(t(a), d, t(i))); })
OP(IndexAdd, (T a, int64_t d, T i, T b, S al, T o, PLAN), { put(o, at::index_add(t(a), d, t(i), t(b), s(al))); })
OP(Repeat, (T a, Ints r, T o, PLAN), { put(o, t(a).repeat(ints(r))); })
OP(IndexPutImpl, (T a, Tensors ix, T v, bool acc, bool, PLAN), { put(a, t(a).index_put_(indices(ix), t(v), acc)); })
OP(RepeatInterleaveIntWithDim, (T a, int64_t r, int64_t d, int64_t, T o, PLAN),
   { put(o, at::repeat_interleave(t(a), r, d)); })
OP(RepeatInterleaveInt, (T a, int64_t r, int64_t, T o, PLAN), { put(o, at::repeat_interleave(t(a), r)); })
OP(NonzeroV2, (T a, T o, PLAN), { put_smaller(o, at::nonzero(t(a)).t().contiguous()); })
