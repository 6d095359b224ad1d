// The official JavaScript client of OpenAI against the server at BASE_URL; prints one JSON object.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: process.env.KEY, maxRetries: 0 });
const model = process.env.MODEL;
const messages = [{ role: "user", content: "What is the capital of France?" }];
const tool = JSON.parse(process.env.TOOL);
const seen = {};

const answer = await client.chat.completions.create({ model, messages, temperature: 0 });
seen.answer = answer.choices[0].message.content;

const runner = client.chat.completions.stream({
  model,
  messages,
  temperature: 0,
  stream_options: { include_usage: true },
});
let text = "";
runner.on("content", (delta) => (text += delta));
const final = await runner.finalChatCompletion();
seen.streamed = text;
seen.final = final.choices[0].message.content;
seen.usage = final.usage.completion_tokens;

const called = await client.chat.completions
  .stream({
    model,
    messages: [{ role: "user", content: "What is the weather in Paris?" }],
    tools: [tool],
    tool_choice: "required",
    parallel_tool_calls: false,
    temperature: 0,
    max_tokens: 200,
  })
  .finalChatCompletion();
seen.arguments = called.choices[0].message.tool_calls[0].function.arguments;

const response = await client.responses.create({ model, input: messages[0].content, temperature: 0 });
seen.response = response.output_text;

let events = "";
for await (const event of await client.responses.create({ model, input: messages[0].content, temperature: 0, stream: true })) {
  if (event.type === "response.output_text.delta") events += event.delta;
}
seen.response_streamed = events;

const vectors = await client.embeddings.create({ model, input: ["a cat"] });
seen.dimensions = vectors.data[0].embedding.length;

try {
  await client.chat.completions.create({ model: "nobody", messages });
} catch (error) {
  seen.error = [error.constructor.name, error.status];
}
console.log(JSON.stringify(seen));
