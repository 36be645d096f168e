import { follow } from './sse';

/** One event of the daemon's history. */
export interface HistoryEvent {
  seq: number;
  at: string;
  kind: string;
  task_id: string | null;
  attempt_id: string | null;
  run_id: string | null;
  data: Record<string, unknown>;
}

export interface Link {
  state: 'connecting' | 'live' | 'away';
  /** Since when it is so, in milliseconds. */
  since: number;
}

type Message =
  | { type: 'events'; events: HistoryEvent[] }
  | { type: 'link'; link: Link; fresh: boolean }
  | { type: 'hello' };

type Listener = (events: HistoryEvent[]) => void;

/**
 * The history of the daemon as it happens, over one connection for all tabs of this browser: the tab
 * that holds a lock reads it and tells the others.
 */
class History {
  private link: Link = { state: 'connecting', since: Date.now() };
  private listeners = new Set<Listener>();
  private watchers = new Set<() => void>();
  private renewals = new Set<() => void>();
  private channel: BroadcastChannel | null = null;
  private leads = false;
  private batch: HistoryEvent[] = [];

  /** Begin to listen; the returned function ends it. */
  start(): () => void {
    const ending = new AbortController();
    this.channel = new BroadcastChannel('kapelle.history');
    this.channel.onmessage = ({ data }: MessageEvent<Message>) => this.take(data);
    this.channel.postMessage({ type: 'hello' } satisfies Message);
    const lead = () => this.lead(ending.signal);
    navigator.locks.request('kapelle.history', { signal: ending.signal }, lead).catch(() => undefined);
    return () => {
      ending.abort();
      this.channel?.close();
      this.leads = false;
      this.link = { state: 'connecting', since: Date.now() };
    };
  }

  onEvents(listener: Listener): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Call back when everything that was read before may be stale. */
  onRenewal(callback: () => void): () => void {
    this.renewals.add(callback);
    return () => this.renewals.delete(callback);
  }

  readonly subscribe = (watcher: () => void): (() => void) => {
    this.watchers.add(watcher);
    return () => this.watchers.delete(watcher);
  };

  readonly current = (): Link => this.link;

  private async lead(signal: AbortSignal): Promise<void> {
    this.leads = true;
    const told = (state: Link['state'], fresh: boolean) => {
      if (state === 'away' && this.link.state === 'away') return;
      this.tell({ type: 'link', link: { state, since: Date.now() }, fresh });
    };
    const wakes = { signal, opened: () => told('live', true), lost: () => told('away', false) };
    for await (const event of follow('/api/v1/events', wakes)) {
      if (this.batch.push(event.data as HistoryEvent) === 1) setTimeout(() => this.flush(), 16);
    }
  }

  private flush(): void {
    const events = this.batch;
    this.batch = [];
    this.tell({ type: 'events', events });
  }

  private tell(message: Message): void {
    this.channel?.postMessage(message);
    this.take(message);
  }

  private take(message: Message): void {
    if (message.type === 'events') {
      for (const listener of this.listeners) listener(message.events);
    } else if (message.type === 'link') {
      this.link = message.link;
      for (const watcher of this.watchers) watcher();
      if (message.fresh) for (const renew of this.renewals) renew();
    } else if (this.leads) {
      this.channel?.postMessage({ type: 'link', link: this.link, fresh: false } satisfies Message);
    }
  }
}

export const history = new History();
