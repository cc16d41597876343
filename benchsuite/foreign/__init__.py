"""Result files of other benchmarks, in our words and back: vLLM bench serve, AIPerf, GuideLLM."""
