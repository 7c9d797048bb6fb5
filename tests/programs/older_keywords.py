from vllm import LLM, SamplingParams

prompts = [
    "abcdabcdab",
    "The future of AI is",
    "cdabcd",
]
sampling_params = SamplingParams(temperature=0.0, top_p=0.95, max_tokens=24)

llm = LLM(
    model="facebook/opt-6.7b",
    speculative_model="[ngram]",
    num_speculative_tokens=4,
    ngram_prompt_lookup_max=3,
    gpu_memory_utilization=0.92,
)
outputs = llm.generate(prompts, sampling_params)

for output in outputs:
    prompt = output.prompt
    generated_text = output.outputs[0].text
    print(f"Prompt: {prompt!r}, Generated text: {generated_text!r}")
