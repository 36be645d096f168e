import { type Activity, activities } from './activity';
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
  | { type: 'activity'; told: Activity[] }
  | { type: 'link'; link: Link; fresh: boolean }
  | { type: 'hello' };

const MOST_RECENT = 2000;
const ENDS = new Set(['completed', 'failed', 'cancelled', 'lost'].map((status) => `attempt.${status}`));
const FRAME_MS = 16;
const PATIENCE_MS = 1000;

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
  private doing = new Map<string, Activity>();
  private recent: HistoryEvent[] = [];
  /** The number behind which nothing is known yet. */
  private last: number | null = null;
  private begun: () => void = () => undefined;
  private beginning = new Promise<void>((resolve) => {
    this.begun = resolve;
  });

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

  /** A list was read as of this number: the stream begins there, and what came since is told again. */
  joins(number: number): void {
    if (this.last === null) this.last = number;
    this.begun();
    const later = this.recent.filter((event) => event.seq > number);
    if (later.length > 0) setTimeout(() => this.hear(later));
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
    const wakes = {
      signal,
      opened: (again: boolean) => told('live', again),
      lost: () => told('away', false),
    };
    // A list tells where to begin; without one from now on, for what is read later is newer.
    await Promise.race([this.beginning, new Promise((resolve) => setTimeout(resolve, PATIENCE_MS))]);
    for await (const event of follow('/api/v1/events?activity=true', wakes, this.last)) {
      const first = this.batch.length + this.doing.size === 0;
      if (event.kind === 'attempt.activity') {
        const activity = event.data as Activity;
        this.doing.set(activity.attempt_id, activity);
      } else this.batch.push(event.data as HistoryEvent);
      // The timers of a hidden tab are slow, and others may be seen that it tells.
      if (document.hidden) this.flush();
      else if (first) setTimeout(() => this.flush(), FRAME_MS);
    }
  }

  private flush(): void {
    const events = this.batch;
    const doing = [...this.doing.values()];
    this.batch = [];
    this.doing.clear();
    if (events.length > 0) this.tell({ type: 'events', events });
    if (doing.length > 0) this.tell({ type: 'activity', told: doing });
  }

  private tell(message: Message): void {
    this.channel?.postMessage(message);
    this.take(message);
  }

  private take(message: Message): void {
    if (message.type === 'events') {
      this.hear(message.events);
      this.recent = [...this.recent, ...message.events].slice(-MOST_RECENT);
      this.last = Math.max(this.last ?? 0, message.events.at(-1)?.seq ?? 0);
    } else if (message.type === 'activity') {
      activities.take(message.told);
    } else if (message.type === 'link') {
      this.link = message.link;
      for (const watcher of this.watchers) watcher();
      if (message.fresh) for (const renew of this.renewals) renew();
    } else if (this.leads) {
      this.channel?.postMessage({ type: 'link', link: this.link, fresh: false } satisfies Message);
      this.channel?.postMessage({ type: 'activity', told: activities.all() } satisfies Message);
    }
  }

  private hear(events: HistoryEvent[]): void {
    for (const event of events) {
      if (event.attempt_id && ENDS.has(event.kind)) activities.forget(event.attempt_id);
    }
    for (const listener of this.listeners) listener(events);
  }
}

export const history = new History();
