import { FitAddon } from '@xterm/addon-fit';
import { Terminal as Screen } from '@xterm/xterm';
import '@xterm/xterm/css/xterm.css';
import { useEffect, useRef, useState } from 'react';
import type { Task } from '../../api/client';
import { counted, shortId } from '../../model/format';
import { hasEnded } from '../../model/work';
import { Said } from '../../parts/text';

const AGAIN_MS = 500;
const AGAIN_MOST_MS = 5000;
const MOST_KEPT = 1000;

type Told =
  | { kind: 'away'; kept: number }
  | { kind: 'connecting' }
  | { kind: 'waiting' | 'ended'; status: string; reason: string | null }
  | { kind: 'opened'; attempt: string; number: number; offset: number };

// The page allows no style in its markup. What xterm would put there says the same through the object model.
const setAttribute = Element.prototype.setAttribute;
HTMLSpanElement.prototype.setAttribute = function (name: string, value: string) {
  if (name === 'style') this.style.cssText = value;
  else setAttribute.call(this, name, value);
};

/** An element in the place of a style element, whose text is a sheet that the document adopts. */
function adoptedStyle(): HTMLElement {
  const sheet = new CSSStyleSheet();
  const element = document.createElement('span');
  element.hidden = true;
  Object.defineProperty(element, 'textContent', { set: (text: string) => sheet.replaceSync(text) });
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((other) => other !== sheet);
    Element.prototype.remove.call(element);
  };
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  return element;
}

function openIn(box: HTMLElement, screen: Screen): void {
  const create = document.createElement;
  const instead = (name: string, options?: ElementCreationOptions) =>
    name === 'style' ? adoptedStyle() : create.call(document, name, options);
  try {
    // adoptedStyle() itself asks for no style.
    document.createElement = instead as typeof document.createElement;
    screen.open(box);
  } finally {
    document.createElement = create;
  }
}

function colours(box: HTMLElement) {
  const { backgroundColor: background, color: foreground } = getComputedStyle(box);
  return { background, foreground, cursor: foreground, cursorAccent: background };
}

/** Be in the terminal of a task as long as it is shown; a connection that breaks is made again. */
function attach(box: HTMLElement, task: string, tell: (told: Told) => void, leave: () => void): () => void {
  const screen = new Screen({
    fontFamily: getComputedStyle(box).fontFamily,
    fontSize: 13,
    scrollback: 10_000,
    minimumContrastRatio: 4.5,
    theme: colours(box),
  });
  const fit = new FitAddon();
  screen.loadAddon(fit);
  openIn(box, screen);
  fit.fit();
  const typed = new TextEncoder();
  let socket: WebSocket;
  let place: { attempt: string; offset: number } | undefined;
  let ended = false;
  let pause = AGAIN_MS;
  let again: ReturnType<typeof setTimeout> | undefined;
  // What is typed while there is no connection is sent when there is one again.
  let ready = false;
  let kept: Uint8Array<ArrayBuffer>[] = [];

  const connect = () => {
    const query = new URLSearchParams({ rows: String(screen.rows), columns: String(screen.cols) });
    if (place) {
      query.set('attempt', place.attempt);
      query.set('offset', String(place.offset));
    }
    socket = new WebSocket(`${location.origin.replace('http', 'ws')}/api/v1/tasks/${task}/terminal?${query}`);
    socket.binaryType = 'arraybuffer';
    socket.onmessage = ({ data }: MessageEvent<string | ArrayBuffer>) => {
      if (typeof data !== 'string') {
        screen.write(new Uint8Array(data));
        if (place) place.offset += data.byteLength;
        return;
      }
      const told = JSON.parse(data) as Told;
      if (told.kind === 'opened') {
        if (!place) screen.focus();
        place = { attempt: told.attempt, offset: told.offset };
        pause = AGAIN_MS;
        ready = true;
        for (const data of kept) socket.send(data);
        kept = [];
      }
      ended = told.kind === 'ended';
      tell(told);
    };
    socket.onclose = () => {
      ready = false;
      if (ended) return;
      tell({ kind: 'away', kept: kept.length });
      again = setTimeout(connect, pause);
      pause = Math.min(2 * pause, AGAIN_MOST_MS);
    };
  };
  const send = (data: Uint8Array<ArrayBuffer>) => {
    if (ended) return;
    if (ready) {
      socket.send(data);
      return;
    }
    kept = [...kept, data].slice(-MOST_KEPT);
    if (place) tell({ kind: 'away', kept: kept.length });
  };
  screen.onData((text) => send(typed.encode(text)));
  screen.onBinary((text) => send(Uint8Array.from(text, (letter) => letter.charCodeAt(0))));
  screen.onResize(({ rows, cols }) => {
    if (ready && !ended) socket.send(JSON.stringify({ rows, columns: cols }));
  });
  screen.attachCustomKeyEventHandler((event) => {
    if (!event.ctrlKey || event.key !== ']') return true;
    if (event.type === 'keydown') leave();
    return false;
  });
  const sizes = new ResizeObserver(() => fit.fit());
  sizes.observe(box);
  const themes = new MutationObserver(() => {
    screen.options.theme = colours(box);
  });
  themes.observe(document.documentElement, { attributeFilter: ['data-theme'] });
  connect();
  return () => {
    ended = true;
    clearTimeout(again);
    socket.close();
    sizes.disconnect();
    themes.disconnect();
    screen.dispose();
  };
}

function wordsOf(told: Told): string {
  switch (told.kind) {
    case 'connecting':
      return 'Connecting.';
    case 'away':
      return told.kept
        ? `The daemon is unreachable; the agent continues. Reconnecting; then your input is sent (${counted(told.kept, 'key')}).`
        : 'The daemon is unreachable; the agent continues. Reconnecting.';
    case 'waiting':
      return `No terminal yet. ${told.reason ?? told.status}`;
    case 'ended':
      return 'The terminal is closed.';
    default:
      return `Attempt ${told.number}. Ctrl-] leaves the terminal.`;
  }
}

/** The terminal of an interactive task. */
export function Terminal({ task }: { task: Task }) {
  const box = useRef<HTMLDivElement>(null);
  const beside = useRef<HTMLParagraphElement>(null);
  const [told, tell] = useState<Told>({ kind: 'connecting' });
  useEffect(() => {
    if (!box.current) return;
    return attach(box.current, task.id, tell, () => beside.current?.focus());
  }, [task.id]);
  return (
    <>
      <p ref={beside} tabIndex={-1} className="tbar small dim" role="status">
        <Said>{wordsOf(told)}</Said>
        <span className="grow" />
        {!hasEnded(task) && <code>kapelle attach {shortId(task.id)}</code>}
      </p>
      <section ref={box} className="tty" aria-label="Terminal" />
    </>
  );
}
