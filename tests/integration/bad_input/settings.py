"""Settings that cannot run, and places that cannot be written."""

from tests.integration.bad_input.promise import Case

CASES = {
    "unknown verb": Case("trian", ["no verb 'trian'", "did you mean 'train'?"]),
    "unknown key": Case("train training.epcohs=3", ["training.epcohs", "did you mean 'training.epochs'?"]),
    "unknown key, added": Case("train +typo=1", ["unknown key 'typo'", "--help"]),
    "bad type": Case("train training.epochs=many", ["training.epochs", "'many'"]),
    "unknown option of a group": Case("train training=fast", ["training=fast", "There are: ", "quick"]),
    "several mistakes, at once": Case(
        "train adapter.rank=0 training.batch_size=0 prompt.layout=turn",
        ["adapter.rank is 0", "training.batch_size is 0", "choose one of transcript, turns"],
    ),
    "quantization that is not there": Case("train base.quantization=int3", ["base.quantization is 'int3'", "choose"]),
    "no such device": Case("train base.device=tpu", ["base.device is 'tpu'", "cuda:N"]),
    "no base": Case("train base.source={here}/base", ["base.source", "there is no folder", "base=smollm2"]),
    "targets that match nothing": Case("train adapter.targets=[c_attn]", ["'c_attn' matches no", "it has", "q_proj"]),
    "a rank above the hidden size": Case("train adapter.rank=100000", ["adapter.rank is 100000", "hidden size of 32"]),
    "a row longer than the base takes": Case(
        "train prompt.max_prefix_tokens=60000 data.test={here}/long.jsonl",
        ["long.jsonl:1", "the base takes 512", "lower prompt.max_prefix_tokens to 50"],
        files={"long.jsonl": '{"messages": [{"role": "user", "content": "' + "red " * 9000 + '"}], "label": "ok"}\n'},
    ),
    "no rows": Case("train data.train=null", ["no training rows are given", "data.train=FILE.jsonl"]),
    "more golden rows than there are": Case("train export.golden_rows=99", ["export.golden_rows=99", "between 0 and"]),
    "no artifact": Case("validate artifact={here}/none", ["artifact", "looked for"]),
    "an artifact of something else": Case("validate artifact={place}/base", ["is no artifact of alora", "run.yaml"]),
    "nothing to score": Case("score artifact={place}/run", ["no conversation is given", "standard input"]),
    "a report that cannot be written": Case(
        "evaluate artifact={place}/run output={place}/policy.yaml/report.json", ["report.json", "writable output="]
    ),
    "a report over the run's own": Case("evaluate artifact={place}/run output={place}/run", ["the run's own record"]),
    "verdicts over the run's own": Case(
        "score artifact={place}/run {place}/talk.json output={place}/run/bundle/alora.json", ["the run's own record"]
    ),
    "verdicts that cannot be written": Case(
        "score artifact={place}/run {place}/talk.json output={place}/policy.yaml/v.json", ["policy.yaml", "choose a"]
    ),
    "packing, as TRL has it": Case("train training.packing=true", ["'training.packing'", "only the last one adapted"]),
    "beam search, added": Case("train +training.num_beams=4", ["'training.num_beams'", "no beam search"]),
    "dropout, as PEFT has it": Case("train adapter.lora_dropout=0.1", ["'adapter.lora_dropout'", "weight_decay"]),
    "a base to be quantized by GPTQ": Case(
        "train base.quantization=gptq", ["base.quantization is 'gptq'", "silently trains a plain LoRA", "bf16"]
    ),
    "a certificate that cannot be written": Case(
        "validate artifact={place}/run output={place}/policy.yaml/report.json", ["policy.yaml", "choose a place"]
    ),
    "a bundle that cannot be written": Case(
        "export artifact={place}/run output={place}/policy.yaml/bundle", ["policy.yaml/bundle", "writable output="]
    ),
    "a bundle in the way of something": Case("export artifact={place}/run output={place}", ["is not a bundle"]),
    "a scaffold in the way of something": Case("new base output={place}/base", ["is there already", "another name"]),
    "a scaffold that cannot be written": Case(
        "new mine output={place}/policy.yaml/mine", ["cannot be written", "another place"]
    ),
    "a run folder below a file": Case("train run_dir={place}/policy.yaml/run", ["policy.yaml/run", "set run_dir="]),
    "a file for a run folder": Case("train run_dir={place}/policy.yaml", ["policy.yaml", "set run_dir="]),
    "a run folder where nobody can write": Case("train run_dir=/proc/run", ["/proc/run", "set run_dir="]),
}
