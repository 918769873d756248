// A button on every block of code. Of a console block it copies the commands, without prompts and output.
"use strict";

function commands(text) {
  const lines = [];
  for (const line of text.split("\n")) {
    if (line.startsWith("$ ")) lines.push(line.slice(2));
    else if (line.startsWith("> ") && lines.length && lines.at(-1).endsWith("\\")) lines.push(line.slice(2));
  }
  return lines.join("\n") + "\n";
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // pages opened as files have no clipboard of their own
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

for (const block of document.querySelectorAll("div.highlight")) {
  const isConsole = block.closest(".highlight-console") !== null;
  if (block.closest(".highlight-text, .highlight-output") !== null) continue;
  const button = document.createElement("button");
  button.className = "copy";
  button.type = "button";
  button.textContent = "copy";
  button.addEventListener("click", async () => {
    const text = block.querySelector("pre").textContent;
    await copy(isConsole ? commands(text) : text);
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
  block.append(button);
}
