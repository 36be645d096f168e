import type { ReactNode } from 'react';
import type { State } from '../model/work';

const round = { strokeLinecap: 'round', strokeLinejoin: 'round' } as const;
const hollow = { fill: 'none', stroke: 'currentColor' } as const;
const disc = <circle cx="8" cy="8" r="7" fill="currentColor" />;
const ring = (width = 1.4, r = 6.2) => <circle cx="8" cy="8" r={r} strokeWidth={width} {...hollow} />;

const SHAPES: Record<State, [label: string, shape: ReactNode]> = {
  run: [
    'running',
    <>
      <circle cx="8" cy="8" r="6" strokeWidth="2" opacity=".28" {...hollow} />
      <path className="arc" d="M8 2a6 6 0 0 1 6 6" strokeWidth="2" {...hollow} {...round} />
    </>,
  ],
  you: [
    'needs you',
    <>
      {disc}
      <path
        className="on"
        d="M6.2 6.3a1.85 1.85 0 1 1 2.7 1.6c-.6.33-.9.7-.9 1.35"
        fill="none"
        strokeWidth="1.6"
        {...round}
      />
      <circle className="onf" cx="8" cy="11.5" r=".95" />
    </>,
  ],
  idle: [
    'idle, interactive',
    <>
      {ring(1.6)}
      <path d="M8 5.2v5.6" strokeWidth="1.6" {...hollow} {...round} />
    </>,
  ],
  ok: [
    'verified',
    <>
      {disc}
      <path className="on" d="m4.9 8.2 2.2 2.2 4.1-4.6" fill="none" strokeWidth="1.7" {...round} />
    </>,
  ],
  said: [
    'reported, not verified',
    <>
      {ring(1.3, 6.3)}
      <path d="m5.2 8.2 2 2 3.7-4.2" strokeWidth="1.4" {...hollow} {...round} />
    </>,
  ],
  merged: [
    'merged',
    <>
      {disc}
      <path
        className="on"
        d="M5.3 4.4c0 2.6 2.7 2.4 2.7 4.6v2.6M10.7 4.4C10.7 7 8 6.8 8 9M6.2 10 8 11.8 9.8 10"
        fill="none"
        strokeWidth="1.4"
        {...round}
      />
    </>,
  ],
  bad: [
    'failed',
    <>
      {disc}
      <path className="on" d="m5.6 5.6 4.8 4.8m0-4.8-4.8 4.8" strokeWidth="1.7" {...round} />
    </>,
  ],
  lost: [
    'lost',
    <>
      <circle cx="8" cy="8" r="6.3" strokeWidth="1.5" strokeDasharray="2.6 2" {...hollow} />
      <path
        d="M6.4 6.5a1.65 1.65 0 1 1 2.4 1.4c-.55.3-.8.6-.8 1.2"
        strokeWidth="1.4"
        {...hollow}
        {...round}
      />
      <circle cx="8" cy="11.1" r=".8" fill="currentColor" />
    </>,
  ],
  queued: [
    'queued',
    <circle
      key="q"
      cx="8"
      cy="8"
      r="6.2"
      strokeWidth="1.6"
      strokeDasharray="1.4 2.5"
      {...hollow}
      {...round}
    />,
  ],
  blocked: [
    'blocked',
    <>
      {ring()}
      <path d="M5 8h6" strokeWidth="1.6" {...hollow} {...round} />
    </>,
  ],
  limit: [
    'waiting for a rate limit',
    <>
      {ring()}
      <path d="M8 4.8V8l2.2 1.6" strokeWidth="1.4" {...hollow} {...round} />
    </>,
  ],
  paused: [
    'paused',
    <>
      {ring()}
      <path d="M6.5 5.8v4.4M9.5 5.8v4.4" strokeWidth="1.5" {...hollow} {...round} />
    </>,
  ],
  cancelled: [
    'cancelled',
    <>
      {ring()}
      <path d="m4 12 8-8" strokeWidth="1.4" {...hollow} />
    </>,
  ],
  todo: ['not yet', ring(1.3)],
  none: ['not applicable', <path key="n" d="M4.5 8h7" strokeWidth="1.5" {...hollow} {...round} />],
};

/** A state, as the one sign that it has everywhere; its words are said with it unless they stand beside it. */
export function Glyph({ state, label }: { state: State; label?: string }) {
  const [name, shape] = SHAPES[state];
  const look = { className: `g g-${state}`, viewBox: '0 0 16 16' };
  if (label === '') {
    return (
      <svg {...look} aria-hidden="true">
        {shape}
      </svg>
    );
  }
  return (
    <svg {...look} role="img" aria-label={label ?? name}>
      {shape}
    </svg>
  );
}

/** The legend of a picture. */
export const Legend = ({ of }: { of: Partial<Record<State, string>> }) => (
  <span className="legend end">
    {(Object.entries(of) as [State, string][]).map(([state, words]) => (
      <span key={state}>
        <Glyph state={state} label="" /> {words}
      </span>
    ))}
  </span>
);
