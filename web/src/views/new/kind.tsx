import { type ReactNode, useEffect, useRef } from 'react';
import { capital } from '../../model/format';

const PICTURES: Record<string, ReactNode> = {
  task: <circle cx="28" cy="13" r="6" />,
  loop: <path d="M36.6 9.2A9.2 9.2 0 1 0 37.2 14M37.4 4v5.6h-5.6" />,
  pipeline: (
    <>
      <circle cx="8" cy="13" r="5" />
      <path d="M13 13h9.5M33 13h9.5" />
      <circle cx="28" cy="13" r="5" />
      <circle cx="48" cy="13" r="5" />
    </>
  ),
  team: (
    <>
      <circle cx="8" cy="13" r="5" />
      <path d="M13 13c6 0 5-8 10-8M13 13c6 0 5 8 10 8M33 5c6 0 5 8 10 8M33 21c6 0 5-8 10-8" />
      <circle cx="28" cy="5" r="4.2" />
      <circle cx="28" cy="21" r="4.2" />
      <path d="m44 13 2.6 2.8 5-5.6" />
    </>
  ),
  'best-of': (
    <>
      <circle cx="14" cy="5" r="4.2" />
      <circle cx="14" cy="21" r="4.2" />
      <path d="M19 5c10 0 10 8 17 8M19 21c10 0 10-8 17-8M38 13l2.6 2.8 5-5.6" />
    </>
  ),
  debate: <path d="M9 7h24v8H17l-4 4v-4H9zM37 11h10v8h-3v4l-4-4H27v-1" />,
  orchestrate: (
    <>
      <circle cx="28" cy="5" r="4.2" />
      <path d="M25 8.5 12 17M28 9.2v7M31 8.5 44 17" />
      <circle cx="10" cy="20" r="3.6" />
      <circle cx="28" cy="20" r="3.6" />
      <circle cx="46" cy="20" r="3.6" />
    </>
  ),
  workflow: (
    <>
      <circle cx="8" cy="13" r="5" />
      <path d="M13 13h9M46.6 9.2A9.2 9.2 0 1 0 47.2 14M47.4 4v5.6h-5.6" />
    </>
  ),
  batch: (
    <>
      <path d="M14 5h14M14 13h14M14 21h14M33 5l2 2.2 4-4.4M33 13l2 2.2 4-4.4" />
      <circle cx="9" cy="5" r="2.6" />
      <circle cx="9" cy="13" r="2.6" />
      <circle cx="9" cy="21" r="2.6" />
    </>
  ),
  tracks: (
    <>
      <path d="M13 4h24M13 13h12M13 22h24M40 4l2.6 2.8 5-5.6M40 22l2.6 2.8 5-5.6" />
      <circle cx="9" cy="4" r="3" />
      <circle cx="9" cy="13" r="3" />
      <circle cx="9" cy="22" r="3" />
    </>
  ),
};

const OTHER = <path d="M8 13h40M40 6l8 7-8 7" />;

const WORDS: Record<string, string> = {
  task: 'one agent, one task',
  loop: 'repeat until a condition holds',
  pipeline: 'steps in order',
  team: 'plan, work, verify, review',
  'best-of': 'several candidates, one wins',
  orchestrate: 'one agent conducts others',
  batch: 'a list of independent tasks',
  workflow: 'plan, then review and implement',
  debate: 'two agents argue a matter',
  tracks: 'a file of features in parallel',
};

export function Kind(props: { name: string; about: string; chosen: boolean; choose: () => void }) {
  const place = useRef<HTMLLabelElement>(null);
  // Where the kinds do not fit side by side, the chosen one is to be seen.
  useEffect(() => {
    const row = place.current?.parentElement;
    if (!props.chosen || !place.current || !row) return;
    const [own, all] = [place.current.getBoundingClientRect(), row.getBoundingClientRect()];
    row.scrollLeft += own.left - all.left - (all.width - own.width) / 2;
  }, [props.chosen]);
  return (
    <label ref={place} className="kind" title={props.about}>
      <input type="radio" name="kind" checked={props.chosen} onChange={props.choose} />
      <svg viewBox="0 0 56 26" aria-hidden="true">
        {PICTURES[props.name] ?? OTHER}
      </svg>
      <b>{capital(props.name.replaceAll('-', ' '))}</b>
      <span>{WORDS[props.name] ?? props.about}</span>
    </label>
  );
}
