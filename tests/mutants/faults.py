"""Faults of the kind that spoils training silently, each a small edit of the source, and the tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass

_ALONE = "tests/integration/train/test_{}.py"
_REFERENCE = _ALONE.format("reference")
_EQUIVALENCE = _ALONE.format("equivalence")
_FSDP = _ALONE.format("fsdp")
_OUTCOME = _ALONE.format("outcome")
_KERNELS = _ALONE.format("kernels")
_EXPERTS = _ALONE.format("experts")
_TUNERS = _ALONE.format("tuners")
_CHECKPOINT = _ALONE.format("checkpoint")
_ARCHITECTURES = _ALONE.format("architectures") + "::test_packed_is_padded_is_transformers"
_GUARD = _ALONE.format("guard")
_LINEAR = f"{_REFERENCE}::test_full_training_follows_the_reference[4x1-linear]"
_RANKS = f"{_EQUIVALENCE}::test_two_ranks_are_one"
_ACCUMULATION = f"{_EQUIVALENCE}::test_accumulation_does_not_change_the_step"
_GOES_ON = f"{_CHECKPOINT}::test_a_run_continues_bit_by_bit"
_COLLATE, _PLAN = "tests/unit/data/test_collate.py", "tests/unit/data/test_plan.py"
_PREPARE, _TOKENIZE = "tests/unit/data/test_prepare.py", "tests/unit/data/test_tokenize.py"
_SPANS = "tests/unit/data/test_spans.py"
_TRANSLATE = "tests/unit/recipe/llamafactory/test_translate.py"
_GROUPS, _SPLIT = "tests/unit/data/test_groups.py", "tests/unit/data/test_tokenize_texts.py"
_ATTENTION, _CROSS_ENTROPY = "tests/unit/train/test_attention.py", "tests/unit/train/test_cross_entropy.py"
_LOSSES = "tests/unit/train/test_preference_losses.py"
_PREFERENCE = _ALONE.format("preference")
_FINGERPRINT = f"{_PREPARE}::test_contents_change_the_fingerprint"


@dataclass(frozen=True)
class Fault:
    """One mutant of the source.

    Args:
        file: below src/ascendtune.
        old: text that stands there exactly once.
        new: what stands there instead.
        spoils: what happens to a user whose copy has this fault.
        test: a test, or a file of tests, that must fail.
        quick: belongs to the sample that `make test` tries.
    """

    file: str
    old: str
    new: str
    spoils: str
    test: str
    quick: bool = False


LOOP, DDP, GROUP = "train/loop.py", "train/strategy/ddp.py", "train/strategy/base.py"
_LABELLED = "labelled = plan.labelled_tokens(sequences)"

FAULTS = [
    # The step
    Fault(
        LOOP,
        "scale = self.strategy.gradient_scale() / units",
        "scale = self.strategy.gradient_scale() / max(1, plan.labelled_tokens("
        "sequences[self.strategy.rank :: self.strategy.world_size]))",
        "gradients divided by this rank's tokens, not by all",
        _RANKS,
        quick=True,
    ),
    Fault(
        LOOP,
        _LABELLED,
        "labelled = plan.tokens(sequences)",
        "loss divided by all tokens, labelled or not",
        _LINEAR,
    ),
    Fault(
        LOOP,
        "scaled = loss * scale",
        "scaled = loss / max(1, len(batch.targets)) / self.recipe.batch.accumulate",
        "a mean of the micro-batches' means",
        _ACCUMULATION,
        quick=True,
    ),
    Fault(
        LOOP, "sums[name] = sums[name] + value if name in sums else value", "sums[name] = value",
        "the loss of the last micro-batch", _ACCUMULATION,
    ),
    Fault(GROUP, "return float(self.world_size)", "return 1.0", "gradients a world size too small", _RANKS),
    Fault(
        LOOP,
        "with nullcontext() if batch.is_last else self.strategy.no_sync(self.module):",
        "with self.strategy.no_sync(self.module):",
        "no all-reduce: each rank trains a model of its own",
        _RANKS,
        quick=True,
    ),
    Fault(
        "train/strategy/fsdp.py",
        "                module.reshard()",
        "                pass",
        "after an evaluation the head stays gathered: a checkpoint no longer finds what the optimizer has",
        f"{_FSDP}::test_ranks_without_work_evaluate_and_train_along",
    ),
    Fault(
        "train/strategy/fsdp.py",
        "        for block in blocks:",
        "        for block in blocks[:0]:",
        "all weights are gathered at once: as much memory as without dividing them",
        f"{_FSDP}::test_each_rank_holds_its_share_of_the_weights",
    ),
    Fault(
        DDP,
        "            self._buckets.finish()",
        "            pass",
        "gradients of the last bucket are used before they are summed",
        _RANKS,
    ),
    Fault(
        "train/batch.py",
        "nothing = batch.targets[:0]",
        "nothing = batch.targets[:1]",
        "a rank without work teaches a token twice",
        f"{_EQUIVALENCE}::test_a_rank_without_work[full]",
    ),
    Fault(
        "train/strategy/base.py",
        "torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)",
        "pass",
        "gradients are not clipped",
        _LINEAR,
    ),
    Fault(
        LOOP,
        "        self.optimizer.zero_grad()",
        "        pass",
        "gradients of all steps add up",
        _LINEAR,
    ),
    Fault(
        LOOP,
        "rate = self.schedule.learning_rate(self.counters.step)",
        "rate = self.schedule.learning_rate(self.counters.step + 1)",
        "learning rate one step ahead",
        _LINEAR,
        quick=True,
    ),
    Fault(
        "train/optimizer.py",
        "math.ceil(total_steps * section.warmup_ratio)",
        "int(total_steps * section.warmup_ratio)",
        "a warm-up step too few",
        "tests/unit/train/test_schedule.py",
    ),
    Fault(
        "train/optimizer.py",
        "0.5 * (1 + math.cos(math.pi * progress))",
        "math.cos(math.pi / 2 * progress)",
        "another cosine",
        "tests/unit/train/test_schedule.py",
        quick=True,
    ),
    Fault(
        "train/optimizer.py",
        '"params": others, "weight_decay": 0.0',
        '"params": others, "weight_decay": weight_decay',
        "weight decay on norms and biases",
        _LINEAR,
    ),
    Fault(
        "train/step_metrics.py",
        "{name: total / self.units for",
        "{name: total / self.counts[-1][0] / len(self.counts) for",
        "records of several steps weigh every step alike",
        f"{_EQUIVALENCE}::test_a_record_of_several_steps_is_the_mean_over_their_tokens",
    ),
    # Labels and batches
    Fault(
        "data/collate.py",
        "shifted[:-1] = labels[1:]",
        "shifted[:] = labels",
        "every token is asked to predict itself",
        _COLLATE,
        quick=True,
    ),
    Fault(
        "data/collate.py",
        "shifted[:-1] = labels[1:]",
        "shifted[:-2] = labels[2:]",
        "every token predicts the one after the next",
        _LINEAR,
    ),
    Fault(
        "data/collate.py",
        "shifted[ends - 1] = IGNORED",
        "shifted[-1] = IGNORED",
        "a document's end predicts the next document's beginning",
        _COLLATE,
        quick=True,
    ),
    Fault(
        "data/collate.py",
        "(np.arange(ends[-1]) - np.repeat(ends - lengths, lengths))[None]",
        "np.arange(ends[-1])[None]",
        "positions go on counting in packed documents",
        _COLLATE,
        quick=True,
    ),
    Fault(
        "data/collate.py",
        "targets = np.full((len(rows), longest), IGNORED, dtype=np.int64)",
        "targets = np.full((len(rows), longest), pad_id, dtype=np.int64)",
        "padding is trained on",
        _COLLATE,
    ),
    Fault(
        "data/collate.py",
        'digest.update(labels.astype("<i4", copy=False).data)',
        "pass",
        "batch_hash does not see labels",
        _COLLATE,
        quick=True,
    ),
    Fault(
        "data/plan.py",
        "np.random.default_rng((self._seed, epoch))",
        "np.random.default_rng((self._seed, 0))",
        "every epoch has the same order",
        _PLAN,
        quick=True,
    ),
    Fault(
        "data/plan.py",
        "(micro * world_size + rank) * per_device",
        "(micro + rank) * per_device",
        "ranks see rows twice and others never",
        _PLAN,
    ),
    Fault(
        "data/plan.py",
        "return Epoch(shuffled.astype(np.int32), bins)",
        "return Epoch(shuffled.astype(np.int32)[:-1], bins)",
        "the last packed sequence is lost",
        _PLAN,
    ),
    Fault(
        "data/collate.py",
        "[group * size + within for",
        "[group + within for",
        "chosen answers are compared with those of other pairs",
        _COLLATE,
    ),
    Fault(
        "data/collate.py",
        'np.searchsorted(ends, batch.target_index, side="right")',
        "np.searchsorted(ends, batch.target_index)",
        "the first token of an answer counts for another document",
        _COLLATE,
    ),
    Fault(
        "data/tokenize.py",
        "self._rows[(row - 1) % len(self._rows)]",
        "self._rows[row]",
        "KTO compares with the row's own answer",
        _GROUPS,
    ),
    Fault(
        "data/format/answer.py",
        'message["train"] = False',
        'message["train"] = True',
        "answers before the last one count in preferences",
        "tests/unit/data/format/test_preference.py",
    ),
    Fault(
        "data/tokenize.py",
        "self.groups.values[written]",
        "self.groups.values[: len(written)]",
        "labels and margins of other rows after one is dropped",
        _GROUPS,
    ),
    Fault(
        "data/tokenize_texts.py",
        "ids = [*self._prefix, *encoding.ids, *self._suffix]",
        "ids = [*self._prefix, *encoding.ids]",
        "no EOS after texts: the model never stops",
        _SPLIT,
    ),
    Fault(
        "data/tokenize_texts.py",
        "ends = [*range(most, length, most), length]",
        "ends = [min(most, length)]",
        "the rest of a long text is lost",
        _SPLIT,
    ),
    Fault(
        "data/store.py",
        "trained[starts] = False",
        "pass",
        "labels that nothing predicts count in the divisor",
        "tests/unit/data/test_store.py",
    ),
    Fault(
        "data/token_ranges.py",
        "ranges.append((first, stop))",
        "ranges.append((first + 1, stop))",
        "an answer's first token is not trained on",
        _SPANS,
        quick=True,
    ),
    Fault(
        "data/token_ranges.py",
        "ranges.append((first, stop))",
        "ranges.append((first - 1, stop))",
        "the prompt's last token is trained on",
        _SPANS,
    ),
    Fault(
        "data/spans.py",
        "texts = {*template.stop_tokens, *filter(None, (template.turn_end,))}",
        "texts = {*template.stop_tokens, template.turn_end} if template.turn_end else set()",
        "GLM-4 does not learn to stop before the next turn",
        f"{_SPANS}::test_token_that_opens_the_next_turn_is_trained_on_where_generation_stops_at_it",
    ),
    Fault(
        "data/spans.py",
        "return (span[0], stop.end()) if stop else span",
        "return span",
        "the end of the answer is not trained on: the model never stops",
        _SPANS,
    ),
    Fault(
        "data/spans.py",
        'text += template.tokenizer.eos or ""',
        'text += ""',
        "no EOS where the template writes none: the model never stops",
        _SPANS,
    ),
    Fault(
        "data/tokenize.py",
        "tokens += each.encoding.ids[: self.max_length]",
        "ids, most = each.encoding.ids, self.max_length; "
        "tokens += ids if len(ids) <= most else [*ids[: most - 1], ids[-1]]",
        "an EOS at the end of truncated rows",
        f"{_TOKENIZE}::test_the_end_is_cut_with_its_eos_and_counted",
    ),
    # The cache of tokens
    Fault(
        "data/fingerprint.py",
        '"template": digest_of_file(template) if template.is_file() else None',
        '"template": None',
        "tokens of an old template",
        _FINGERPRINT,
    ),
    Fault(
        "data/fingerprint.py", '"tokenizer": tokenizer', '"tokenizer": len(tokenizer)', "tokens of another tokenizer",
        _FINGERPRINT, quick=True,
    ),
    Fault(
        "data/fingerprint.py",
        '"task": inputs.task',
        '"task": ""',
        "tokens of another stage",
        f"{_PREPARE}::test_the_task_changes_the_fingerprint",
    ),
    Fault("data/fingerprint.py", '"code": _code_version()', '"code": ""', "tokens of old code", _FINGERPRINT),
    Fault(
        "data/fingerprint.py",
        '_KEYS_WITHOUT_EFFECT = {"packing", "processes"}',
        '_KEYS_WITHOUT_EFFECT = {"packing", "processes", "max_length"}',
        "tokens of another max_length",
        f"{_PREPARE}::test_keys_that_change_tokens_change_the_fingerprint",
    ),
    Fault(
        "data/fingerprint.py",
        '_KEYS_WITHOUT_EFFECT = {"packing", "processes"}',
        '_KEYS_WITHOUT_EFFECT = {"packing", "processes", "template"}',
        "tokens of another named template",
        f"{_PREPARE}::test_keys_that_change_tokens_change_the_fingerprint",
    ),
    # Model, attention, loss
    Fault(
        "train/attention/interface.py",
        "if cu_seqlens is None or len(cu_seqlens) == 2:",
        "if True:",
        "packed documents see each other",
        _ATTENTION,
        quick=True,
    ),
    Fault(
        "train/attention/interface.py",
        "if cu_seqlens is None or len(cu_seqlens) == 2:",
        "if cu_seqlens is None or len(cu_seqlens) != 2:",
        "packed documents see each other, and a run begins",
        f"{_EQUIVALENCE}::test_packed_is_padded_token_by_token",
    ),
    Fault(
        "train/attention/interface.py",
        "lengths = document_lengths(cu_seqlens) if cu_seqlens else [query.shape[2]]",
        "lengths = [query.shape[2]]",
        "packed documents see each other",
        _ATTENTION,
    ),
    Fault(
        "train/attention/interface.py",
        "(distance < window)",
        "(distance <= window)",
        "a sliding window one token too wide",
        f"{_ARCHITECTURES}[Mistral]",
    ),
    Fault(
        "train/attention/interface.py",
        "if sliding_window is not None and length > sliding_window:",
        "if False:",
        "sliding windows are ignored",
        f"{_ARCHITECTURES}[Mistral]",
    ),
    Fault(
        "train/attention/interface.py",
        "scale=scaling,\n            dropout_p",
        "scale=None,\n            dropout_p",
        "the model's own scale of scores is ignored",
        f"{_ARCHITECTURES}[Granite]",
    ),
    Fault(
        "train/model_checks.py",
        "if not difference <= allowed:",
        "if difference != difference:",
        "the proof of isolation proves nothing",
        _GUARD,
    ),
    Fault(
        "train/objective/head.py",
        "    if not bool(((logits - expected).abs() <= _ALLOWED * expected.abs()).all()):",
        "    if not bool(((logits - expected).abs() <= expected.abs().max()).all()):",
        "what a model does to its logits beside scaling and capping is skipped in the loss",
        f"{_ALONE.format('heads')}::test_heads_with_other_changes_than_scale_and_cap_use_the_models_own_logits",
    ),
    Fault(
        "train/objective/head.py",
        "HeadForm(scale, reached if is_capped else None)",
        "HeadForm(scale, None)",
        "capped logits are not recognised",
        f"{_ALONE.format('heads')}::test_scale_and_cap_are_found_together",
    ),
    Fault(
        "train/objective/head.py",
        "(1 - (logits / self.cap) ** 2) * self.scale",
        "self.scale",
        "the gradient does not know of the cap",
        f"{_CROSS_ENTROPY}::test_scaled_and_capped_logits_equal_torch",
    ),
    Fault(
        "train/attention/proof.py",
        "    if not share <= _VALUES * rounding:",
        "    if share != share:",
        "an attention is accepted whose values are not the model's",
        "tests/unit/train/test_attention_proof.py",
    ),
    Fault(
        "train/batch.py",
        "if masked and batch.attention_mask is not None else None",
        "if masked and batch.attention_mask is None else None",
        "a model with masks of its own is not told what is padding",
        "tests/unit/train/test_batch.py",
    ),
    Fault(
        "train/objective/sft.py",
        "add_weight_gradient(grad_weight, logits, hidden[part])",
        "add_weight_gradient(grad_weight.zero_(), logits, hidden[part])",
        "the head learns from the last chunk only",
        _CROSS_ENTROPY,
        quick=True,
    ),
    Fault(
        "train/objective/sft.py",
        "_scaled(grad_hidden, grad_output, grad_hidden.dtype)",
        "grad_hidden",
        "the decoder's gradient is not scaled",
        _CROSS_ENTROPY,
    ),
    Fault(
        "train/objective/sft.py",
        "torch.stack(checkpointed_chunks(score, hidden, head, targets, form)).sum()",
        "checkpointed_chunks(score, hidden, head, targets, form)[-1]",
        "a head with an adapter learns from the last chunk only",
        _CROSS_ENTROPY,
    ),
    Fault(
        "train/tuner/lora.py",
        "lora_alpha=lora.alpha_or_default",
        "lora_alpha=lora.alpha_or_default / lora.rank",
        "LoRA's scale divided by the rank twice",
        f"{_OUTCOME}::test_exported_adapter_gives_the_logits_of_the_trained_model",
        quick=True,
    ),
    Fault(
        "train/tuner/lora.py",
        "use_rslora=lora.rslora",
        "use_rslora=False",
        "rslora has no effect",
        f"{_OUTCOME}::test_exported_adapter_gives_the_logits_of_the_trained_model",
    ),
    Fault(
        "recipe/method.py",
        "else 2.0 * self.rank",
        "else self.rank",
        "another alpha than the documentation says",
        f"{_OUTCOME}::test_alpha_is_twice_the_rank",
    ),
    Fault(
        "train/tuner/lora.py",
        "tuned.base_model.set_adapter([TRAINED, *frozen])",
        "tuned.base_model.set_adapter([TRAINED])",
        "frozen adapters beside the trained one are left out",
        f"{_TUNERS}::test_several_adapters_leave_as_one",
    ),
    Fault(
        "train/tuner/frozen_adapters.py",
        "terms = [_pairs(tuned, trained, TRAINED), *tuned.frozen_pairs]",
        "terms = [_pairs(tuned, trained, TRAINED)]",
        "what leaves of a PiSSA run holds the weights' principal part once more",
        f"{_TUNERS}::test_lora_changes_the_adapter_alone",
        quick=True,
    ),
    Fault(
        "train/tuner/frozen_adapters.py",
        "(b * scaling).detach()",
        "b.detach()",
        "adapters of other scales are added as they are",
        f"{_TUNERS}::test_several_adapters_leave_as_one",
    ),
    Fault(
        "train/tuner/frozen_adapters.py",
        "replace(config, lora_dropout=0.0, modules_to_save=None)",
        "replace(config, modules_to_save=None)",
        "dropout on what takes a PiSSA start back",
        f"{_TUNERS}::test_the_adapter_that_subtracts_the_pissa_start_has_no_dropout",
    ),
    Fault(
        "train/loop.py",
        'rate * group["learning_rate_factor"]',
        "rate",
        "the ratio of LoRA+ has no effect",
        f"{_TUNERS}::test_lora_plus_ratio_scales_the_rate_of_b_matrices",
    ),
    Fault(
        "recipe/method.py",
        "range(layers - self.layers_at_the_end, layers)",
        "range(layers - (self.layers_at_the_end or layers), layers)",
        "no last layers means all of them",
        f"{_TUNERS}::test_freeze_changes_exactly_what_it_names",
    ),
    # Kernels
    Fault(
        "train/kernel/rms_norm.py",
        "1.0 + self.weight.float() if one_plus",
        "self.weight.float() if one_plus",
        "Gemma's norms without their 1: found by the self-test, so the kernel is lost",
        f"{_KERNELS}::test_kernels_are_found_in_each_family_and_agree",
    ),
    Fault(
        "train/kernel/swiglu.py",
        "kernel(self.gate_proj(x), self.up_proj(x))",
        "kernel(self.up_proj(x), self.gate_proj(x))",
        "gate and up mixed up",
        f"{_KERNELS}::test_kernels_are_found_in_the_structures_of_baichuan2",
    ),
    Fault(
        "train/kernel/install.py",
        "        if not difference <= limit:",
        "        if False:",
        "a kernel that computes something else is used",
        f"{_KERNELS}::test_a_wrong_kernel_is_found_and_taken_out",
        quick=True,
    ),
    Fault(
        "train/kernel/rotary.py",
        "{**own.__globals__, _NAME: self._current}",
        "own.__globals__.__setitem__(_NAME, self._current) or own.__globals__",
        "every model of this family in the process rotates with our operator",
        f"{_KERNELS}::test_other_models_in_this_process_keep_their_own",
    ),
    Fault(
        "train/kernel/experts.py",
        "gradient.unflatten(0, (-1, ctx.times)).sum(1)",
        "gradient.unflatten(0, (-1, ctx.times))[:, 0]",
        "a token learns from the first of its experts only: found by the self-test, so the kernel is lost",
        f"{_EXPERTS}::test_experts_are_found_in_each_family_and_agree",
    ),
    Fault(
        "train/kernel/experts.py",
        "output: torch.Tensor = kernel(rows, weight, counts)",
        "output: torch.Tensor = kernel(rows, weight, counts.roll(1))",
        "rows meet the matrix of another expert: found at load, so the kernel is lost",
        f"{_EXPERTS}::test_experts_are_found_in_each_family_and_agree",
    ),
    Fault(
        "train/kernel/experts.py",
        "in_autocast_type(self.gate_up_proj, self.down_proj)",
        "self.gate_up_proj, self.down_proj",
        "experts are multiplied in fp32 whatever the precision",
        f"{_EXPERTS}::test_under_autocast_products_are_in_its_type",
    ),
    Fault(
        "train/model.py",
        "mean = table.float().mean(0).to(table.dtype)",
        "mean = torch.zeros_like(table[0])",
        "new tokens begin at zero",
        f"{_OUTCOME}::test_new_tokens_add_rows_and_leave_the_others_unchanged",
    ),
    # Evaluation
    Fault(
        "train/evaluate.py",
        "objective.eval()",
        "objective.train()",
        "evaluation with dropout",
        f"{_OUTCOME}::test_evaluation_is_without_dropout",
        quick=True,
    ),
    Fault(
        "train/evaluate.py",
        "objective.train(was_training)",
        "objective.train(False)",
        "no dropout after the first evaluation",
        f"{_OUTCOME}::test_evaluating_changes_nothing_in_training",
    ),
    Fault(
        "train/evaluate.py",
        "batches.dataset.label_counts[",
        "batches.dataset.lengths[",
        "evaluation loss divided by all tokens",
        f"{_OUTCOME}::test_evaluation_is_the_mean_over_labelled_tokens",
    ),
    Fault(
        "train/counters.py",
        "self.worse_evaluations < early.patience",
        "self.worse_evaluations <= early.patience",
        "early stop one evaluation late",
        f"{_OUTCOME}::test_early_stop_counts_evaluations_without_improvement",
    ),
    Fault(
        "train/counters.py",
        "loss < (math.inf if self.best_loss is None else self.best_loss)",
        "loss < (math.inf if self.best_loss is None else self.best_loss - min_improvement)",
        "the best checkpoint is not the one of the lowest loss",
        f"{_OUTCOME}::test_best_is_the_lowest_loss_whatever_counts_as_improvement",
    ),
    Fault(
        "train/loop.py",
        "protected=counters.best_step if self.recipe.checkpoint.best else None",
        "protected=None",
        "after a resume the best checkpoint is removed as an old one",
        f"{_OUTCOME}::test_resume_keeps_the_best_checkpoint",
    ),
    Fault(
        "train/attempt.py",
        "loop.checkpointer.load(run.checkpoint(best))",
        "pass",
        "the last weights come out instead of the best",
        f"{_OUTCOME}::test_the_best_checkpoint_is_what_comes_out",
    ),
    # Checkpoints
    Fault(
        "train/checkpoint/random_state.py",
        'torch.set_rng_state(content["cpu"])',
        "pass",
        "a resumed run draws other dropout",
        _GOES_ON,
        quick=True,
    ),
    Fault(
        "train/checkpoint/content.py",
        "self._restore_optimizer(tensors)",
        "pass",
        "a resumed run forgets AdamW's moments",
        _GOES_ON,
    ),
    Fault(
        "train/resume.py",
        "run.drop_records_after(counters.step, counters.evaluated_step)",
        "pass",
        "steps stand twice in metrics.jsonl after a resume",
        _GOES_ON,
    ),
    Fault(
        "train/checkpoint/tensor_files.py",
        "os.fsync(file.fileno())",
        "pass",
        "a checkpoint gets its name before its tensors are on the disk",
        f"{_CHECKPOINT}::test_a_checkpoint_gets_its_name_when_its_content_is_on_the_disk",
    ),
    Fault(
        "train/checkpoint/content.py",
        "os.fsync(file.fileno())",
        "pass",
        "a checkpoint gets its name before its state is on the disk",
        f"{_CHECKPOINT}::test_a_checkpoint_gets_its_name_when_its_content_is_on_the_disk",
    ),
    Fault(
        "train/checkpoint/checkpointer.py",
        "lambda digests: self._finish(step, directory, digests, protected, on_complete)",
        "(self._finish(step, directory, {}, protected, on_complete), lambda digests: None)[1]",
        "a checkpoint gets its name before its content is written",
        _CHECKPOINT,
    ),
    Fault(
        "train/checkpoint/checkpointer.py",
        "sync_path(self._run.checkpoints)",
        "pass",
        "a checkpoint's name is lost with the power",
        f"{_CHECKPOINT}::test_a_checkpoint_gets_its_name_when_its_content_is_on_the_disk",
    ),
    Fault(
        "core/files.py",
        "                os.fsync(file.fileno())",
        "                pass",
        "run.json is empty after a power cut",
        f"{_CHECKPOINT}::test_a_file_gets_its_name_when_its_content_is_on_the_disk",
        quick=True,
    ),
    Fault(
        "core/files.py",
        "        sync_path(path.parent)",
        "        pass",
        "a rename is lost with the power",
        f"{_CHECKPOINT}::test_a_file_gets_its_name_when_its_content_is_on_the_disk",
    ),
    Fault(
        "core/files.py",
        "        sync_tree(building)",
        "        pass",
        "the final model and the cached tokens are not on the disk when they get their name",
        f"{_CHECKPOINT}::test_everything_that_a_run_leaves_was_flushed_before_it_was_named",
    ),
    # LLaMA-Factory's words
    Fault(
        "recipe/llamafactory/keys.py",
        '"optim.learning_rate", copied=True, filled=True',
        '"optim.learning_rate", copied=True',
        "a LLaMA-Factory recipe without learning_rate trains with the default of ascendtune",
        f"{_TRANSLATE}::test_absent_keys_get_llamafactory_defaults",
    ),
    Fault(
        "recipe/llamafactory/method.py",
        'native.put("method.preference.loss", loss, ',
        'native.put("method.preference.loss", "sigmoid", ',
        "pref_loss: hinge trains sigmoid",
        "tests/integration/train/test_llamafactory.py",
    ),
    Fault(
        "recipe/llamafactory/dataset_info.py",
        "(rivals | own).items() if column != native}",
        "own.items() if column and column != native}",
        "columns that a dataset_info.json does not name are read all the same",
        "tests/integration/train/test_llamafactory.py",
    ),
    Fault(
        "data/format/mapping.py",
        'roles.get(name, f"{name} (no tag names it)")',
        "roles.get(name, name)",
        "what a speaker says whom no tag names is trained on",
        "tests/unit/data/format/test_mapping.py",
    ),
    # Merge
    Fault(
        "merge/arithmetic.py",
        "_accumulate_product(weight, b, a, low_rank.scaling)",
        "_accumulate_product(weight, b, a, 1.0)",
        "an adapter merged without its scale",
        "tests/integration/train/merge/test_merge.py",
    ),
    Fault(
        "merge/verify.py",
        "_TOLERANCE = 1e-4",
        "_TOLERANCE = 1e-1",
        "half an adapter is taken for the rounding of bf16",
        "tests/integration/train/merge/test_merge.py",
    ),
    Fault(
        "merge/verify.py",
        "if logits.isnan().any():",
        "if False:",
        "a merge of a model that reads a matrix outside its module cannot be verified",
        "tests/unit/merge/test_verify.py",
    ),
    Fault(
        "merge/chunked_linear.py",
        "_multiply(inputs, weight[begin : begin + share], results[..., begin : begin + share])",
        "_multiply(inputs, weight[:share], results[..., begin : begin + share])",
        "each thread multiplies the first rows of a matrix",
        "tests/unit/merge/test_chunked_linear.py",
    ),
    Fault(
        "merge/tied.py",
        "return bool(above.additions or above.rotations or below.additions) or not _same_bytes(above, below)",
        "return not _same_bytes(above, below)",
        "what an adapter learnt for the head is lost where embeddings are tied",
        "tests/integration/train/merge/test_merge.py",
    ),
    Fault(
        "merge/write.py",
        'temporary = target.with_name(f".{target.name}.merging")',
        "temporary = target",
        "a merge that was killed leaves half a model under its name",
        "tests/integration/train/merge/test_merge_command.py",
    ),
    Fault(
        "train/prepare.py",
        "resume_from=str(choice.resumed), **facts)",
        'resume_from=str(choice.resumed), **{**facts, "data_hash": choice.run.read()["data_hash"]})',
        "a run that goes on with other data is trained on the old",
        "tests/integration/test_resume.py::test_data_that_changed_is_refused_unless_allowed",
    ),
    Fault(
        "core/rundir.py",
        'f"reference_{part}_{key[:16]}.f64"',
        'f"reference_{part}_.f64"',
        "other data of as many rows get the reference of the old",
        f"{_PREFERENCE}::test_other_data_have_another_reference",
    ),
    # Preferences and rewards
    Fault(
        "train/objective/preference_loss.py",
        "logits = options.beta * pairs.chosen_ratio.minus(pairs.rejected_ratio).value\n    smoothing",
        "logits = options.beta * pairs.chosen.minus(pairs.rejected).value\n    smoothing",
        "DPO without its reference",
        _LOSSES,
    ),
    Fault(
        "train/objective/preference_loss.py",
        "(chosen.minus(rejected).value - 1 /",
        "(pairs.chosen_ratio.minus(pairs.rejected_ratio).value - 1 /",
        "IPO on sums over tokens",
        _LOSSES,
    ),
    Fault(
        "train/objective/preference_loss.py",
        "options.beta * sign * (divergence - ratio)",
        "options.beta * sign * -ratio",
        "KTO without its divergence",
        _LOSSES,
        quick=True,
    ),
    Fault(
        "train/objective/log_probs.py",
        ".mul_(-weights[:, None])",
        ".mul_(-weights[:, None].abs())",
        "rejected answers pull the policy the wrong way",
        "tests/unit/train/test_log_probs.py",
    ),
    Fault(
        "train/objective/preference.py",
        "index_add(0, groups.target_slot, per_token)",
        "index_add(0, groups.target_slot.flip(0), per_token)",
        "answers get each other's log-probabilities",
        f"{_PREFERENCE}::test_learning_tells_the_answers_apart",
    ),
    Fault(
        "train/objective/preference.py",
        "self._divergence = self._mean_over_ranks(total, count).clamp(min=0)",
        "self._divergence = (total / count).clamp(min=0)",
        "KTO's divergence is that of one rank",
        f"{_PREFERENCE}::test_kto_is_the_same_however_a_step_is_divided",
    ),
    Fault(
        LOOP,
        "units = plan.groups(sequences) if",
        "units = labelled if",
        "a loss per pair divided by tokens",
        f"{_PREFERENCE}::test_the_first_loss_is_the_closed_form",
    ),
    Fault(
        "train/reference_log_probs.py",
        "    strategy.all_reduce(values)\n",
        "",
        "after the first epoch a rank has no reference for rows of another",
        f"{_PREFERENCE}::test_packing_accumulation_and_ranks_do_not_change_the_curve[sigmoid]",
    ),
    Fault(
        "train/objective/reward.py",
        "functional.logsigmoid(chosen - rejected - margin)",
        "functional.logsigmoid(chosen - rejected)",
        "margins are not looked at",
        _LOSSES,
    ),
    # Planted once in a copy: the tests that name the file passed
    Fault(
        "data/collate.py",
        "    shifted[ends - 1] = IGNORED\n",
        "    shifted[512:-1] = labels[512:-1]\n    shifted[ends - 1] = IGNORED\n",
        "beyond 512 tokens every token is asked to predict itself",
        f"{_COLLATE}::test_every_token_of_a_long_row_is_predicted_from_the_one_before_it",
    ),
    Fault(
        "data/plan.py",
        "np.random.default_rng((self._seed, epoch))",
        "np.random.default_rng((self._seed, epoch % 2))",
        "the third epoch repeats the first",
        f"{_PLAN}::test_no_epoch_repeats_the_order_of_another",
    ),
    Fault(
        "train/optimizer.py",
        "betas=(section.beta1, section.beta2)",
        "betas=(section.beta1, 0.999)",
        "optim.beta2 has no effect",
        "tests/unit/train/test_optimizer.py",
    ),
    Fault(
        "train/optimizer.py",
        "        return self._peak * (self._floor + (1 - self._floor) * share)",
        "        floor = 0.0 if self._shape == \"linear\" else self._floor\n"
        "        return self._peak * (floor + (1 - floor) * share)",
        "a linear schedule ends at 0 whatever the recipe says",
        "tests/unit/train/test_schedule.py",
    ),
    Fault(
        "train/setup.py",
        "torch.manual_seed(recipe.seed + strategy.rank)",
        "torch.manual_seed(recipe.seed)",
        "all ranks drop out the same positions",
        "tests/unit/train/test_setup.py",
    ),
    Fault(
        "train/objective/preference.py",
        "self._mean_over_ranks(total, count).clamp(min=0)",
        "self._mean_over_ranks(total, count)",
        "an estimate below 0 counts as a divergence from the reference",
        "tests/unit/train/test_kto.py",
    ),
    Fault(
        "train/model.py",
        "(model.get_input_embeddings(), model.get_output_embeddings())",
        "(model.get_input_embeddings(),)",
        "the scores of new tokens begin as noise where the head is not tied",
        "tests/unit/train/test_model.py",
    ),
    Fault(
        "train/recorder.py",
        "counters.tokens_seen += metrics.tokens",
        "counters.tokens_seen = metrics.tokens",
        "tokens_seen is that of the last record",
        "tests/unit/train/test_loop.py",
    ),
    Fault(
        LOOP,
        "plan=self.batches.plan, batch=sequences)",
        "plan=self.batches.plan, batch=sequences[self.strategy.rank :: self.strategy.world_size])",
        "tokens_seen is that of one rank",
        "tests/unit/train/test_loop.py",
    ),
    Fault(
        "train/reference_log_probs.py",
        "    objective.eval()\n    yield",
        "    yield",
        "the policy answers as the reference with dropout",
        "tests/unit/train/test_reference_log_probs.py",
    ),
    Fault(
        "train/reference_log_probs.py",
        "mean_over_ranks=strategy.mean).eval()",
        "mean_over_ranks=strategy.mean).train()",
        "another model answers as the reference with dropout",
        "tests/unit/train/test_reference_log_probs.py",
    ),
    Fault(
        "infer/transformers_model.py",
        "eos_token_id=list(stop_ids) or None",
        "eos_token_id=list(stop_ids)[:1] or None",
        "generation goes on behind an end that is not the first of the stop tokens",
        "tests/unit/infer/test_engine.py",
    ),
    Fault(
        "core/rundir.py",
        '["step"] > last:',
        '["step"] > last + 1:',
        "the step after the checkpoint stands twice in metrics.jsonl",
        "tests/unit/core/test_rundir.py",
    ),
    Fault(
        "train/resume.py",
        "run.drop_records_after(counters.step, counters.evaluated_step)",
        "run.drop_records_after(counters.evaluated_step, counters.step)",
        "steps between the last evaluation and the checkpoint are missing in metrics.jsonl",
        "tests/integration/test_resume.py",
    ),
    # A base of four bits.
    Fault(
        "train/tuner/nf4.py",
        "levels[0::2] * 16 + levels[1::2]",
        "levels[1::2] * 16 + levels[0::2]",
        "two neighbouring weights change places",
        "tests/unit/train/test_nf4.py",
    ),
    Fault(
        "train/tuner/nf4.py",
        "levels += scaled > (lower + upper) / 2",
        "levels += scaled > upper",
        "weights are rounded down to a level, not to the nearest",
        "tests/unit/train/test_nf4.py",
    ),
    Fault(
        "train/tuner/lora_linear.py",
        "return dequantise(Nf4(weight, scales, outer, shape), dtype)",
        "return dequantise(Nf4(weight, scales, outer, shape), torch.bfloat16).to(dtype)",
        "quantised weights are rounded to bf16 whatever is computed in",
        "tests/integration/train/test_quantised.py::test_trains_what_is_trained_over_the_weights_that_the_bytes_stand_for",
    ),
    Fault(
        "train/deferred_weights.py",
        "weight = weight.clone()",
        "pass",
        "weights stay mapped from files that may be replaced",
        "tests/integration/train/test_quantised.py::test_nothing_stays_mapped_from_the_files",
    ),
    Fault(
        "train/unread_tensor.py",
        "tensor.compute = value.compute",
        "pass",
        "data that a model assigns to a weight while it is loaded are forgotten",
        "tests/unit/train/test_deferred_weights.py",
    ),
    Fault(
        "train/tuner/initial_values.py",
        "each.data = each.data.to(layer.get_base_layer().weight.dtype)",
        "pass",
        "DoRA's magnitudes have more digits where weights are read block by block",
        "tests/unit/train/test_deferred_weights.py",
    ),
    Fault(
        "train/offloaded_activations.py",
        "return tensor if is_weight else (pack(tensor),)",
        "return (pack(tensor),)",
        "every weight goes to the host and back in each pass",
        "tests/unit/train/test_offloaded_activations.py",
    ),
]  # fmt: skip
