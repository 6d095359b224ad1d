"""Output items under way: each says its beginning, its pieces and its end, in the order that clients expect."""

from collections.abc import Callable

from pelton.http.openai.responses import TokenLogprob
from pelton.http.openai.responses_api.events import (
    ArgumentsDelta,
    ArgumentsDone,
    ContentPartEvent,
    Event,
    ItemEvent,
    PartStage,
    ReasoningDelta,
    ReasoningDone,
    TextDelta,
    TextDone,
)
from pelton.http.openai.responses_api.shapes import (
    FunctionCall,
    ItemStatus,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
    new_id,
)

Say = Callable[[Event], None]


class OpenMessage:
    def __init__(self, index: int, say: Say) -> None:
        self._index = index
        self._say = say
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._id = new_id("msg")
        say(_added(index, OutputMessage(id=self._id, status="in_progress", content=[])))
        say(_part("response.content_part.added", self._id, index, OutputText(text="")))

    def add(self, text: str, logprobs: list[TokenLogprob]) -> None:
        self._texts.append(text)
        self._logprobs += logprobs
        self._say(TextDelta(item_id=self._id, output_index=self._index, delta=text, logprobs=logprobs))

    def close(self, status: ItemStatus) -> OutputItem:
        text = "".join(self._texts)
        part = OutputText(text=text, logprobs=self._logprobs)
        self._say(TextDone(item_id=self._id, output_index=self._index, text=text, logprobs=self._logprobs))
        self._say(_part("response.content_part.done", self._id, self._index, part))
        return _done(self._say, self._index, OutputMessage(id=self._id, status=status, content=[part]))


class OpenReasoning:
    def __init__(self, index: int, say: Say) -> None:
        self._index = index
        self._say = say
        self._texts: list[str] = []
        self._id = new_id("rs")
        say(_added(index, ReasoningItem(id=self._id, status="in_progress", content=[])))
        say(_part("response.content_part.added", self._id, index, ReasoningText(text="")))

    def add(self, text: str) -> None:
        self._texts.append(text)
        self._say(ReasoningDelta(item_id=self._id, output_index=self._index, delta=text))

    def close(self, status: ItemStatus) -> OutputItem:
        part = ReasoningText(text="".join(self._texts))
        self._say(ReasoningDone(item_id=self._id, output_index=self._index, text=part.text))
        self._say(_part("response.content_part.done", self._id, self._index, part))
        return _done(self._say, self._index, ReasoningItem(id=self._id, status=status, content=[part]))


class OpenCall:
    def __init__(self, index: int, say: Say, call_id: str, name: str) -> None:
        self._index = index
        self._say = say
        self._call_id = call_id
        self._name = name
        self._texts: list[str] = []
        self._id = new_id("fc")
        say(_added(index, self._item("in_progress", "")))

    def add(self, text: str) -> None:
        self._texts.append(text)
        self._say(ArgumentsDelta(item_id=self._id, output_index=self._index, delta=text))

    def close(self, status: ItemStatus) -> OutputItem:
        arguments = "".join(self._texts)
        self._say(ArgumentsDone(item_id=self._id, output_index=self._index, name=self._name, arguments=arguments))
        return _done(self._say, self._index, self._item(status, arguments))

    def _item(self, status: ItemStatus, arguments: str) -> FunctionCall:
        return FunctionCall(id=self._id, status=status, call_id=self._call_id, name=self._name, arguments=arguments)


OpenItem = OpenMessage | OpenReasoning | OpenCall


def _added(index: int, item: OutputItem) -> ItemEvent:
    return ItemEvent(type="response.output_item.added", output_index=index, item=item)


def _part(kind: PartStage, item_id: str, index: int, part: OutputText | ReasoningText) -> ContentPartEvent:
    return ContentPartEvent(type=kind, item_id=item_id, output_index=index, part=part)


def _done(say: Say, index: int, item: OutputItem) -> OutputItem:
    say(ItemEvent(type="response.output_item.done", output_index=index, item=item))
    return item
