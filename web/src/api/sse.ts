import { ApiError, refusal } from './client';

export interface StreamEvent {
  id: string;
  kind: string;
  data: unknown;
}

/** The events of one connection, as they come; ends with the connection. */
export async function* events(
  url: string,
  signal: AbortSignal,
  lastId?: string,
): AsyncGenerator<StreamEvent | null> {
  const headers: HeadersInit = lastId ? { 'Last-Event-ID': lastId } : {};
  const response = await fetch(url, { headers, signal });
  if (!response.ok || !response.body) throw await refusal(response);
  yield null;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split('\n\n');
    rest = blocks.pop() ?? '';
    for (const block of blocks) {
      const event = parsed(block);
      if (event) yield event;
    }
  }
}

/** The number of the newest event. */
export async function lastEvent(url: string): Promise<number> {
  const ending = new AbortController();
  const response = await fetch(url, { signal: ending.signal });
  if (!response.ok) throw await refusal(response);
  const last = Number(response.headers.get('X-Last-Event-ID') ?? 0);
  ending.abort();
  return last;
}

function parsed(block: string): StreamEvent | null {
  const found: Record<string, string> = {};
  for (const line of block.split('\n')) {
    const at = line.indexOf(':');
    if (at <= 0) continue;
    const name = line.slice(0, at);
    const value = line.slice(at + 1).replace(/^ /, '');
    found[name] = name in found ? `${found[name]}\n${value}` : value;
  }
  if (found.data === undefined) return null;
  return { id: found.id ?? '', kind: found.event ?? 'message', data: JSON.parse(found.data) };
}

const PAUSES_MS = [250, 500, 1000, 2000, 4000, 8000];

interface Wakes {
  signal: AbortSignal;
  /** The connection stands: at first, or again. */
  opened: (again: boolean) => void;
  lost: () => void;
}

/** Events without gap or repetition over all connections, until the signal; ends when the daemon refuses. */
export async function* follow(
  url: string,
  wakes: Wakes,
  after: number | null = null,
): AsyncGenerator<StreamEvent> {
  const { signal, opened, lost } = wakes;
  let lastId = after === null ? undefined : String(after);
  let failures = 0;
  let again = false;
  while (!signal.aborted) {
    try {
      for await (const event of events(url, signal, lastId)) {
        if (event === null) {
          failures = 0;
          opened(again);
          again = true;
          continue;
        }
        lastId = event.id || lastId;
        yield event;
        if (event.kind === 'end') return;
      }
    } catch (error) {
      if (signal.aborted || (error instanceof ApiError && error.status >= 400 && error.status < 500)) return;
    }
    lost();
    await pause(PAUSES_MS[Math.min(failures++, PAUSES_MS.length - 1)] ?? 8000, signal);
  }
}

const waits = new Set<() => void>();

/** Try again at once whatever waits to reconnect. */
export function retryNow(): void {
  for (const wake of [...waits]) wake();
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const wake = () => {
      clearTimeout(timer);
      waits.delete(wake);
      resolve();
    };
    const timer = setTimeout(wake, ms);
    waits.add(wake);
    signal.addEventListener('abort', wake, { once: true });
  });
}

window.addEventListener('online', retryNow);
document.addEventListener('visibilitychange', () => {
  if (!document.hidden) retryNow();
});
