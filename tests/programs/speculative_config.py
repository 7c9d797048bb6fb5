from vllm import LLM, SamplingParams

prompts = ["abcdabcdab", "ab"]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=20)

llm = LLM(
    model="facebook/opt-6.7b",
    speculative_config={
        "method": "ngram",
        "num_speculative_tokens": 5,
        "prompt_lookup_max": 4,
    },
)
outputs = llm.generate(prompts, sampling_params)

for output in outputs:
    print(f"Prompt: {output.prompt!r}, Generated text: {output.outputs[0].text!r}")
