// Fused attention, from the documented meaning of its arguments, computed in fp32.
//
// Layouts BNSD, BSND, BSH, SBH (one length for all rows) and TND (documents end to end, cumulative lengths without the
// leading 0). A mask says what is hidden. Sparse modes: 0 and 1 the mask that is given, 2 causal from the upper left,
// 3 causal from the lower right, 4 a band; 2 to 4 want the compressed 2048 × 2048 mask. For TND the maximum and the sum
// of the softmax are saved, eight times each, in memory as (heads, tokens, 8) for one document after the other, as
// MindSpeed's ring attention reads them (`flatten_softmax`), and the gradient is computed from these and the output
// that it is given. In the other layouts they are not those of the device, and the gradient needs the inputs alone.
// Fully hidden rows give the mean of the values here; what a device gives is unknown. What CANN's pages on these
// operators exclude is refused, for TND also by torch_npu's page on npu_fusion_attention:
// https://gitcode.com/cann/ops-transformer, attention/flash_attention_score(_grad)/docs;
// https://gitcode.com/Ascend/op-plugin, docs/zh/custom_APIs/torch_npu.
#include "../aclnn.h"

using namespace simulated;

namespace {
using at::Tensor;
// A finite stand-in for -infinity, so that a row without any key gives numbers.
constexpr double kHidden = -40000.0;
constexpr int64_t kCompressedMask = 2048;

struct Mask {
  Tensor given;
  int64_t mode, before, after;

  // (queries, keys), true where hidden; undefined where nothing is.
  Tensor hidden(int64_t queries, int64_t keys) const {
    auto row = at::arange(queries).unsqueeze(1), column = at::arange(keys).unsqueeze(0);
    auto diagonal = row + (keys - queries);
    if (mode >= 2 && mode <= 4)
      TORCH_CHECK(given.defined() && given.size(-1) == kCompressedMask, "sparse mode ", mode, " without its mask");
    switch (mode) {
      case 0:
        if (!given.defined()) return {};
        return given.to(at::kBool).logical_or(column.gt(row + after)).logical_or(column.lt(row - before));
      case 1:
        return given.defined() ? given.to(at::kBool) : Tensor();
      case 2:
        return column.gt(row);
      case 3:
        return column.gt(diagonal);
      case 4:
        return column.gt(diagonal + after).logical_or(column.lt(diagonal - before));
      default:
        TORCH_CHECK(false, "sparse mode ", mode, " is not simulated");
    }
  }
};

// One computation over (batch, heads, tokens, head_dim).
struct Attention {
  Tensor query, key, value, scores, weights;
  int64_t group;
  double scale;

  Attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias, const Mask& mask, double scale)
      : query(q.to(at::kFloat)), group(q.size(1) / k.size(1)), scale(scale) {
    TORCH_CHECK(q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type(),
                "query, key and value have different types");
    TORCH_CHECK(q.size(1) <= 256 && q.size(1) % k.size(1) == 0, "heads that the operator does not take");
    TORCH_CHECK(q.size(3) == k.size(3) && k.size(3) >= v.size(3) && q.size(3) <= 512, "head_dim of another size");
    key = k.to(at::kFloat).repeat_interleave(group, 1);
    value = v.to(at::kFloat).repeat_interleave(group, 1);
    scores = at::matmul(query, key.transpose(-1, -2)) * scale;
    if (bias.defined()) scores = scores + bias.to(at::kFloat);
    if (auto hidden = mask.hidden(query.size(2), key.size(2)); hidden.defined())
      scores = scores.masked_fill(hidden, kHidden);
    weights = at::softmax(scores, -1);
  }
  Tensor output() const { return at::matmul(weights, value); }
  std::array<Tensor, 3> gradients(const Tensor& of_output) const {
    auto dy = of_output.to(at::kFloat);
    auto dweights = at::matmul(dy, value.transpose(-1, -2));
    return by_rule(dy, dweights, weights, (dweights * weights).sum(-1, true));
  }
  // From what the forward pass has saved: (1, heads, tokens, 1) the maximum and the sum, and the output.
  std::array<Tensor, 3> gradients(const Tensor& of_output, const Tensor& maximum, const Tensor& sum,
                                  const Tensor& output) const {
    auto dy = of_output.to(at::kFloat);
    auto saved = at::exp(scores - maximum) / sum;
    return by_rule(dy, at::matmul(dy, value.transpose(-1, -2)), saved, (dy * output.to(at::kFloat)).sum(-1, true));
  }
  std::array<Tensor, 3> by_rule(const Tensor& dy, const Tensor& dweights, const Tensor& p, const Tensor& d) const {
    auto dscores = p * (dweights - d) * scale;
    return {at::matmul(dscores, key), of_shared_heads(at::matmul(dscores.transpose(-1, -2), query)),
            of_shared_heads(at::matmul(p.transpose(-1, -2), dy))};
  }
  Tensor of_shared_heads(const Tensor& x) const {
    return x.reshape({x.size(0), x.size(1) / group, group, x.size(2), x.size(3)}).sum(2);
  }
};

bool has_heads(const std::string& layout) { return layout == "BNSD" || layout == "BSND"; }
int64_t key_heads(T q, T k, const std::string& layout, int64_t heads) {
  return has_heads(layout) ? heads : heads * t(k).size(-1) / t(q).size(-1);
}
// To (batch, heads, tokens, head_dim), as a view where that can be.
Tensor opened(const Tensor& x, const std::string& layout, int64_t heads) {
  if (layout == "BNSD") return x;
  if (layout == "BSND") return x.transpose(1, 2);
  auto split = x.reshape({x.size(0), x.size(1), heads, -1});
  if (layout == "BSH") return split.transpose(1, 2);
  TORCH_CHECK(layout == "SBH", "layout ", layout, " is not simulated");
  return split.permute({1, 2, 0, 3});
}
void put_closed(T out, const Tensor& x, const std::string& layout) {
  if (layout == "BNSD") return put(out, x);
  auto tokens_first = layout == "SBH" ? x.permute({2, 0, 1, 3}) : x.transpose(1, 2);
  put(out, tokens_first.reshape(t(out).sizes()));
}
// Documents of a TND tensor: (1, heads, tokens, head_dim) each.
std::vector<Tensor> documents(T x, Ints ends) {
  TORCH_CHECK(ends->values.size() <= 1024 && t(x).size(0) <= 1000000, "too many documents or tokens");
  TORCH_CHECK(ends->values.back() == t(x).size(0), "the documents are not all tokens");
  std::vector<Tensor> result;
  int64_t begin = 0;
  for (auto end : ends->values) {
    result.push_back(t(x).narrow(0, begin, end - begin).transpose(0, 1).unsqueeze(0));
    begin = end;
  }
  return result;
}
void put_documents(T out, const std::vector<Tensor>& parts) {
  std::vector<Tensor> rows;
  for (auto& part : parts) rows.push_back(part[0].transpose(0, 1));
  auto all = at::cat(rows);
  put(out, all);
}
// Numbers of each query, one document after the other, eight times each.
void put_saved(T out, const std::vector<Tensor>& parts) {
  std::vector<Tensor> flat;
  for (auto& part : parts) flat.push_back(part.flatten());
  put(out, at::cat(flat).unsqueeze(1).repeat({1, 8}).reshape(t(out).sizes()));
}
// (1, heads, tokens, 1) of the document with `count` numbers that begin at `begin`.
Tensor saved(T from, int64_t begin, int64_t heads, int64_t count) {
  return t(from).contiguous().view({-1, 8}).narrow(0, begin, count).select(1, 0).view({1, heads, -1, 1});
}
void refuse(const std::string& layout, const char* wanted, double keep) {
  TORCH_CHECK(keep == 1.0, "dropout in fused attention is not simulated");
  TORCH_CHECK(!wanted || layout == wanted, "layout ", layout, " is not simulated");
}
void put_statistics(T maximum, T sum) {
  t(maximum).zero_();
  t(sum).fill_(1);
}
}  // namespace

OP_WITH_LAYOUT(FlashAttentionScore,
               (T q, T k, T v, T bias, T, T, T mask, Ints, double scale, double keep, int64_t before, int64_t after,
                int64_t heads, char* layout, int64_t, int64_t mode, T maximum, T sum, T, T o, PLAN),
               {
                 refuse(l, nullptr, keep);
                 auto shared = key_heads(q, k, l, heads);
                 Attention attention(opened(t(q), l, heads), opened(t(k), l, shared), opened(t(v), l, shared), t(bias),
                                     {t(mask), mode, before, after}, scale);
                 put_statistics(maximum, sum);
                 put_closed(o, attention.output(), l);
               })

OP_WITH_LAYOUT(FlashAttentionScoreGrad,
               (T q, T k, T v, T dy, T bias, T, T, T mask, T, T, T, T, Ints, double scale, double keep, int64_t before,
                int64_t after, int64_t heads, char* layout, int64_t, int64_t mode, T dq, T dk, T dv, T, PLAN),
               {
                 refuse(l, nullptr, keep);
                 auto shared = key_heads(q, k, l, heads);
                 Attention attention(opened(t(q), l, heads), opened(t(k), l, shared), opened(t(v), l, shared), t(bias),
                                     {t(mask), mode, before, after}, scale);
                 auto gradients = attention.gradients(opened(t(dy), l, heads));
                 put_closed(dq, gradients[0], l);
                 put_closed(dk, gradients[1], l);
                 put_closed(dv, gradients[2], l);
               })

OP_WITH_LAYOUT(FlashAttentionVarLenScore,
               (T q, T k, T v, T, T, T, T mask, Ints, Ints query_ends, Ints key_ends, double scale, double keep,
                int64_t before, int64_t after, int64_t, char* layout, int64_t, int64_t mode, T maximum, T sum, T, T o,
                PLAN),
               {
                 refuse(l, "TND", keep);
                 auto queries = documents(q, query_ends), keys = documents(k, key_ends),
                      values = documents(v, key_ends);
                 std::vector<Tensor> outputs, largest, sums;
                 for (size_t i = 0; i < queries.size(); i++) {
                   Attention attention(queries[i], keys[i], values[i], {}, {t(mask), mode, before, after}, scale);
                   outputs.push_back(attention.output());
                   largest.push_back(attention.scores.amax(-1, true));
                   sums.push_back(at::exp(attention.scores - largest.back()).sum(-1));
                 }
                 put_saved(maximum, largest);
                 put_saved(sum, sums);
                 put_documents(o, outputs);
               })

OP_WITH_LAYOUT(FlashAttentionUnpaddingScoreGrad,
               (T q, T k, T v, T dy, T, T, T, T mask, T maximum, T sum, T, T output, Ints, Ints query_ends,
                Ints key_ends, double scale, double keep, int64_t before, int64_t after, int64_t, char* layout, int64_t, int64_t mode, T dq, T dk,
                T dv, T, PLAN),
               {
                 refuse(l, "TND", keep);
                 auto queries = documents(q, query_ends), keys = documents(k, key_ends),
                      values = documents(v, key_ends);
                 auto upstream = documents(dy, query_ends), outputs = documents(output, query_ends);
                 std::vector<Tensor> dqueries, dkeys, dvalues;
                 int64_t begin = 0;
                 for (size_t i = 0; i < queries.size(); i++) {
                   Attention attention(queries[i], keys[i], values[i], {}, {t(mask), mode, before, after}, scale);
                   auto heads = queries[i].size(1), count = heads * queries[i].size(2);
                   auto gradients = attention.gradients(upstream[i], saved(maximum, begin, heads, count),
                                                        saved(sum, begin, heads, count), outputs[i]);
                   begin += count;
                   dqueries.push_back(gradients[0]);
                   dkeys.push_back(gradients[1]);
                   dvalues.push_back(gradients[2]);
                 }
                 put_documents(dq, dqueries);
                 put_documents(dk, dkeys);
                 put_documents(dv, dvalues);
               })
