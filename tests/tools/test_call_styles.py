"""The style of a model's calls, by the templates that models come with."""

import pytest

import test_chat_template as templates
from pelton.http.tools.styles import call_style, has_reasoning


@pytest.mark.parametrize(
    ("template", "style", "reasons"),
    [
        (templates.QWEN3, "hermes", True),
        (templates.LLAMA3, "llama3_json", False),
        (templates.MISTRAL, "hermes", False),  # an early one, without tools
        ('{{ "[TOOL_CALLS] [" }}', "mistral", False),
        ("Put calls in [func_name1(params_name1=params_value1)] {{ ipython }}", "pythonic", False),
        ("{% if '<|python_start|>' in x %}{% endif %}", "pythonic", False),
        ("{% set content = content.split('</think>')[-1] %}", "hermes", True),
        (None, "hermes", False),
    ],
)
def test_a_template_tells_the_style_unless_it_is_set(template: str | None, style: str, reasons: bool):
    assert call_style("auto", template) == style
    assert has_reasoning("auto", template) is reasons
    assert call_style("mistral", template) == "mistral"
    assert has_reasoning("qwen3", template) and has_reasoning("deepseek_r1", template)
    assert not has_reasoning("none", template)
