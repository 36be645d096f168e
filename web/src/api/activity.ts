import { useSyncExternalStore } from 'react';
import type { Attempt } from './client';

/** The latest line of a running attempt's agent. */
export interface Activity {
  at: string;
  task_id: string;
  attempt_id: string;
  kind: 'text' | 'tool_call' | null;
  name: string;
  text: string;
  data: Record<string, unknown>;
  usage: Attempt['usage'];
  output_bytes: number;
}

const MOST_AT_ONCE = 20;
const [SLOTS, SLOT_MS] = [16, 5000];

/** The activities by attempt; each component subscribes to one attempt. */
class Activities {
  private last = new Map<string, Activity>();
  private watchers = new Map<string, Set<() => void>>();
  private pulses = new Map<string, Map<number, number>>();
  private due = new Set<string>();
  private next: ReturnType<typeof setTimeout> | undefined;

  take(told: Activity[]): void {
    for (const activity of told) {
      this.note(activity);
      this.last.set(activity.attempt_id, activity);
    }
    for (const { attempt_id } of told) this.due.add(attempt_id);
    this.tell();
  }

  /** Count what it printed since it was heard of last. */
  private note({ attempt_id, output_bytes }: Activity): void {
    const before = this.last.get(attempt_id)?.output_bytes;
    if (before === undefined || output_bytes <= before) return;
    const pulse = this.pulses.get(attempt_id) ?? new Map<number, number>();
    const slot = Math.floor(Date.now() / SLOT_MS);
    pulse.set(slot, (pulse.get(slot) ?? 0) + output_bytes - before);
    for (const old of pulse.keys()) if (old <= slot - SLOTS) pulse.delete(old);
    this.pulses.set(attempt_id, pulse);
  }

  /** So few at a time that no frame waits for hundreds of agents that speak at once. */
  private tell = (): void => {
    clearTimeout(this.next);
    for (const attemptId of [...this.due].slice(0, MOST_AT_ONCE)) {
      this.due.delete(attemptId);
      for (const watcher of this.watchers.get(attemptId) ?? []) watcher();
    }
    if (this.due.size > 0) this.next = setTimeout(this.tell);
  };

  all = (): Activity[] => [...this.last.values()];
  of = (attemptId: string): Activity | undefined => this.last.get(attemptId);

  pulse(attemptId: string): number[] {
    const now = Math.floor(Date.now() / SLOT_MS);
    const pulse = this.pulses.get(attemptId);
    return Array.from({ length: SLOTS }, (_, place) => pulse?.get(now - SLOTS + 1 + place) ?? 0);
  }

  forget(attemptId: string): void {
    this.last.delete(attemptId);
    this.pulses.delete(attemptId);
  }

  watch(attemptId: string, watcher: () => void): () => void {
    const others = this.watchers.get(attemptId) ?? new Set();
    this.watchers.set(attemptId, others.add(watcher));
    return () => {
      others.delete(watcher);
      if (others.size === 0) this.watchers.delete(attemptId);
    };
  }
}

export const activities = new Activities();

/** The bytes that an attempt printed in each of the last time slots. */
export const pulseOf = (attemptId: string): number[] => activities.pulse(attemptId);

/** The current activity of an attempt, as the daemon reports it. */
export function useActivity(attemptId: string): Activity | undefined {
  return useSyncExternalStore(
    (watcher) => activities.watch(attemptId, watcher),
    () => activities.of(attemptId),
  );
}
