"""Small tokenizers whose chat templates behave like those of known families.

The templates are written for these tests: what they do is like, not what they say.
"""

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as BackendTokenizer
from transformers import PreTrainedTokenizerFast

from mempo_jax.models.tokenizer import Tokenizer

CORPUS = (
    "Where is the key? The key is in the hall, and the milk is in the garden.\n\n"
    "system\nuser\nassistant\n\nAnn's phone number is 4711 now; recalled nothing.\n"
    "<think>\nIt may be asked later.\n</think>\n\nYou are helpful. hello hello <| <| <|"
)
# Words with a blank before them, short numbers, marks with the line breaks behind.
WORDS = (
    r"'(?:s|t|re|ve|m|ll|d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHATML = """
{%- if messages[0]['role'] != 'system' %}
    {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}
    {{- '<|im_start|>' ~ m['role'] ~ '\\n' ~ m['content'] ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
# Thoughts of turns before the last question go; the newest turn always has one.
DROPS_THOUGHTS = """
{%- set asked = namespace(last=0) %}
{%- for m in messages if m.role == 'user' %}{%- set asked.last = loop.index %}
{%- endfor %}
{%- set asked.seen = 0 %}
{%- for m in messages %}
    {%- if m.role == 'user' %}{%- set asked.seen = asked.seen + 1 %}{%- endif %}
    {{- '<|im_start|>' ~ m.role ~ '\\n' }}
    {%- if m.role == 'assistant' %}
        {%- set said = m.content.split('</think>') %}
        {%- if asked.seen == asked.last %}
            {%- set thought = said[0].split('<think>')[-1] if said|length > 1 else '' %}
            {{- '<think>\\n' ~ thought.strip('\\n') ~ '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- said[-1].lstrip('\\n') if said|length > 1 else m.content }}
    {%- else %}{{- m.content }}{%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
HEADERS = """
{{- bos_token }}
{%- if date_string is not defined %}
    {%- set date_string = strftime_now('%d %b %Y') %}
{%- endif %}
{%- set with_system = messages[0].role == 'system' %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday: ' ~ date_string }}
{{- '\\n\\n' }}
{{- (messages[0].content | trim if with_system else '') ~ '<|eot_id|>' }}
{%- for m in (messages[1:] if with_system else messages) %}
    {{- '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\\n\\n' }}
    {{- (m.content | trim) ~ '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""
# The prompt opens a thought; an earlier turn keeps what stands behind its end.
OPENS_THOUGHT = """
{{- bos_token }}
{%- for m in messages %}
    {%- if m.role == 'system' %}{{- m.content }}{%- endif %}
    {%- if m.role == 'user' %}{{- '<|user|>' ~ m.content }}{%- endif %}
    {%- if m.role == 'assistant' %}
        {{- '<|assistant|>' ~ m.content.split('</think>')[-1] ~ '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|><think>\\n' }}{%- endif %}"""
# The prompt opens a thought that stays; an empty one stands where there was none.
KEEPS_OPENED = """
{%- for m in messages %}
    {{- '<|im_start|>' ~ m.role ~ '\\n' }}
    {%- if m.role == 'assistant' %}
        {%- set said = m.content.split('</think>') %}
        {%- set thought = said[0].split('<think>')[-1] if said|length > 1 else '' %}
        {{- '<think>\\n' ~ thought.strip('\\n') ~ '\\n</think>\\n\\n' }}
        {{- said[-1].lstrip('\\n') if said|length > 1 else m.content }}
    {%- else %}{{- m.content }}{%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n<think>\\n' }}
{%- endif %}"""
# The prompt has an empty thought, in whose place a real one stands later.
KEEPS_CLOSED = KEEPS_OPENED.replace(
    "<think>\\n' }}\n{%- endif", "<think>\\n\\n</think>\\n\\n' }}\n{%- endif"
)
THOUGHTS = ("<think>", "</think>")


def fast(template, marks, plain=(), merges=120, **special):
    """A byte-level BPE tokenizer of a few hundred tokens."""
    backend = BackendTokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + merges, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator([CORPUS], trainer)
    backend.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    backend.add_tokens([AddedToken(mark, normalized=False) for mark in plain])
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend, clean_up_tokenization_spaces=False, **special
    )
    made.chat_template = template
    return made


def chatml(template=CHATML, plain=(), special=()):
    marks = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *special)
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return fast(template, marks, plain, **ends)


def headers():
    marks = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>")
    marks += ("<|eot_id|>", "<|end_of_text|>")
    ends = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    return fast(HEADERS, marks, **ends)


def opens_thought():
    marks = ("<|begin|>", "<|user|>", "<|assistant|>", "<|end|>")
    ends = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    return fast(OPENS_THOUGHT, marks, THOUGHTS, **ends)


FAST = {
    "chatml": chatml(),
    "headers": headers(),
    "drops_thoughts": chatml(DROPS_THOUGHTS, THOUGHTS),
    "no_thinking": chatml(DROPS_THOUGHTS, THOUGHTS),
    "opens_thought": opens_thought(),
    "keeps_opened": chatml(KEEPS_OPENED, THOUGHTS),
    "keeps_closed": chatml(KEEPS_CLOSED, special=THOUGHTS),
}
OPTIONS = {
    "headers": (("date_string", "26 Jul 2024"),),
    "no_thinking": (("enable_thinking", False),),
}
FAMILIES = {n: Tokenizer(f, (), OPTIONS.get(n, ())) for n, f in FAST.items()}
REWRITING = ("drops_thoughts", "no_thinking", "opens_thought", "keeps_opened")
REWRITING += ("keeps_closed",)


def rendered(name, messages):
    """The template's own rendering, by ``transformers`` alone."""
    return FAST[name].apply_chat_template(
        messages,
        tokenize=False,
        add_generation_prompt=True,
        **dict(OPTIONS.get(name, ())),
    )
