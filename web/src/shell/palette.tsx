import { useNavigate } from '@tanstack/react-router';
import { type KeyboardEvent, useEffect, useMemo, useState } from 'react';
import { isRun, type Work } from '../api/client';
import { type Hit, useSearched, useWork } from '../api/queries';
import { shortId } from '../model/format';
import { type State, stateOf } from '../model/work';
import { Dialog } from '../parts/dialog';
import { Glyph } from '../parts/glyph';
import { Icon, type IconName } from '../parts/icon';
import { Said } from '../parts/text';

interface Goal {
  key: string;
  text: string;
  about: string;
  to: string;
  search?: { q: string };
  icon?: IconName;
  state?: State;
}

const PLACES: Goal[] = [
  { key: 'now', text: 'Now', about: 'g n', to: '/', icon: 'now' },
  { key: 'work', text: 'Work', about: 'g w', to: '/work', icon: 'work' },
  { key: 'new', text: 'New', about: 'c', to: '/new', icon: 'plus' },
  { key: 'schedules', text: 'Schedules', about: 'g s', to: '/schedules', icon: 'schedules' },
  { key: 'knowledge', text: 'Knowledge', about: 'g k', to: '/knowledge', icon: 'knowledge' },
  { key: 'projects', text: 'Projects and archive', about: '', to: '/projects', icon: 'work' },
  { key: 'report', text: 'Report', about: '', to: '/report', icon: 'work' },
  { key: 'usage', text: 'Usage', about: 'g u', to: '/usage', icon: 'usage' },
  { key: 'system', text: 'System', about: 'g y', to: '/system', icon: 'system' },
];
const MOST = 12;

const goalOf = (work: Work): Goal => ({
  key: work.id,
  text: work.title,
  about: `${isRun(work) ? work.pattern : 'task'} ${shortId(work.id)}`,
  to: `/${isRun(work) ? 'runs' : 'tasks'}/${work.id}`,
  state: stateOf(work),
});

/** Where a hit stands; learnings and notes have no place here. */
function placeOf(hit: Hit): string | null {
  if (hit.id.startsWith('run_')) return `/runs/${hit.id}`;
  if (!hit.id.startsWith('task_')) return null;
  return hit.kind === 'output' ? `/tasks/${hit.id}/output` : `/tasks/${hit.id}`;
}

const SHORTEST = 3;
const PAUSE_MS = 200;

/** Ended work that holds these words in its prompt, its result or its output. */
function useHits(typed: string): Goal[] {
  const [query, ask] = useState('');
  useEffect(() => {
    const timer = setTimeout(() => ask(typed.trim()), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [typed]);
  const hits = useSearched(query, query.length >= SHORTEST).data?.hits ?? [];
  return hits.flatMap((hit, place) => {
    const to = placeOf(hit);
    const text = `${hit.title}: ${hit.text.replace(/\s+/g, ' ')}`;
    return to ? [{ key: `hit-${place}`, text, about: hit.kind, to, icon: 'search' as const }] : [];
  });
}

/** Goes to a place, to work by its title or id, or to what it says. */
export function Palette({ close }: { close: () => void }) {
  const navigate = useNavigate();
  const list = useWork({ nested: true, limit: 500 });
  const [typed, setTyped] = useState('');
  const [chosen, setChosen] = useState(0);
  const hits = useHits(typed);
  const goals = useMemo(() => {
    const all = [...PLACES, ...(list.data?.pages.flatMap((page) => page.work.map(goalOf)) ?? [])];
    const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (goal: Goal) => {
      const text = `${goal.text} ${goal.key} ${goal.about}`.toLowerCase();
      return words.every((word) => text.includes(word));
    };
    const found = all.filter(fits).slice(0, MOST);
    const everything: Goal = {
      key: 'search',
      text: `Search everything for ${typed.trim()}`,
      about: 'search',
      to: '/search',
      search: { q: typed.trim() },
      icon: 'search',
    };
    return words.length > 0 ? [...found, ...hits, everything] : found;
  }, [list.data, typed, hits]);
  const go = (goal: Goal | undefined) => {
    if (!goal) return;
    close();
    navigate({ to: goal.to, search: goal.search });
  };
  const press = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      setChosen((chosen + step + goals.length) % Math.max(1, goals.length));
    } else if (event.key === 'Enter') {
      event.preventDefault();
      go(goals[chosen]);
    }
  };
  return (
    <Dialog title="Search or go to" close={close} className="palette">
      <div className="searchbox">
        <Icon name="search" />
        <input
          role="combobox"
          aria-expanded="true"
          aria-controls="goals"
          aria-activedescendant={goals[chosen] && `goal-${goals[chosen].key}`}
          aria-label="Search or go to"
          placeholder="A place, or work by its title, its id or its words"
          value={typed}
          onChange={(event) => {
            setTyped(event.target.value);
            setChosen(0);
          }}
          onKeyDown={press}
        />
        <kbd>esc</kbd>
      </div>
      <div id="goals" role="listbox" aria-label="Found">
        {goals.map((goal, place) => (
          // biome-ignore lint/a11y/useKeyWithClickEvents: the keys are those of the field
          <div
            key={goal.key}
            id={`goal-${goal.key}`}
            role="option"
            tabIndex={-1}
            aria-selected={place === chosen}
            onClick={() => go(goal)}
          >
            {goal.state ? <Glyph state={goal.state} /> : <Icon name={goal.icon ?? 'work'} />}
            <span className="cut">
              <Said>{goal.text}</Said>
            </span>
            <span className="end">{goal.about}</span>
          </div>
        ))}
      </div>
    </Dialog>
  );
}
