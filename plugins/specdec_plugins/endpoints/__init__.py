"""OpenAI-compatible servers, asked over HTTP: vLLM, SGLang, llama.cpp, TGI, transformers serve and others."""
