import { useSyncExternalStore } from 'react';
import { clock, moment, secondsBetween, span, visible } from '../model/format';

/** Text that somebody else wrote: never markup, kept to its own direction, nothing hidden in it. */
export const Said = ({ children, className }: { children: string; className?: string }) => (
  <bdi className={className}>{visible(children)}</bdi>
);

let now = Date.now();
const watchers = new Set<() => void>();
let timer: ReturnType<typeof setInterval> | undefined;

function subscribe(watcher: () => void): () => void {
  watchers.add(watcher);
  timer ??= setInterval(() => {
    now = Date.now();
    for (const wake of watchers) wake();
  }, 1000);
  return () => {
    watchers.delete(watcher);
    if (watchers.size === 0) {
      clearInterval(timer);
      timer = undefined;
    }
  };
}

/** The time, a second at a time. */
export const useNow = (): number => useSyncExternalStore(subscribe, () => now);

const utc = (at: string): string => `${new Date(at).toISOString().replace('T', ' ').slice(0, 19)} UTC`;

export const Moment = ({ at, seconds }: { at: string; seconds?: boolean }) => (
  <time dateTime={at} title={utc(at)}>
    {moment(at, seconds)}
  </time>
);

/** The time since a moment. */
export function Age({ at, className }: { at: string; className?: string }) {
  const time = useNow();
  return (
    <time className={className} dateTime={at} title={utc(at)}>
      {span(Math.floor(secondsBetween(at, Math.max(time, Date.parse(at)))))}
    </time>
  );
}

/** The duration of something, running or ended. */
export function Elapsed({ from, to, className }: { from: string; to?: string | null; className?: string }) {
  const time = useNow();
  return <span className={className}>{clock(secondsBetween(from, to ?? time))}</span>;
}
