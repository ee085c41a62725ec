// Optimiser steps and the scaling of fp16 gradients.
#include <cmath>

#include "../aclnn.h"

using namespace simulated;

// op-plugin hands over the step before this one.
OP(ApplyAdamWV2,
   (T p, T m, T v, T largest, T g, T step, float lr, float beta1, float beta2, float decay, float eps, bool amsgrad,
    bool maximize, PLAN),
   {
     auto gradient = t(g).to(at::kFloat);
     if (maximize) gradient = -gradient;
     double n = t(step).item<double>() + 1;
     t(p).mul_(1 - lr * decay);
     put(m, t(m).lerp_(gradient.to(t(m).scalar_type()), 1 - beta1));
     put(v, t(v).mul_(beta2).addcmul_(gradient, gradient, 1 - beta2));
     if (amsgrad) put(largest, at::maximum(t(largest), t(v)));
     auto root = t(amsgrad ? largest : v).div(1 - std::pow(beta2, n)).sqrt().add(eps);
     put(p, t(p).addcdiv_(t(m), root, -lr / (1 - std::pow(beta1, n))));
   })

OP(ForeachNonFiniteCheckAndUnscale, (Tensors gradients, T found, T inverse, PLAN), {
  float factor = t(inverse).item<float>();
  // https://gitcode.com/cann/ops-nn, foreach/foreach_non_finite_check_and_unscale/docs.
  for (auto& x : list(gradients))
    TORCH_CHECK(x.numel() && x.scalar_type() == list(gradients)[0].scalar_type(), "empty or mixed");
  for (auto* gradient : gradients->values) {
    if (!at::isfinite(t(gradient)).all().item<bool>()) t(found).fill_(1);
    put(gradient, t(gradient).mul_(factor));
  }
})

// Growth and backoff are double in the generated header, and op-plugin hands them over as double.
OP(AmpUpdateScale,
   (T scale, T tracker, T found, double growth, double backoff, int64_t interval, T new_scale, T new_tracker, PLAN), {
     auto updated = t(scale).clone(), count = t(tracker).clone();
     at::_amp_update_scale_(updated, count, t(found), growth, backoff, interval);
     put(new_scale, updated);
     put(new_tracker, count);
   })
