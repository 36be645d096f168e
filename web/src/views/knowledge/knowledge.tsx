import { useNavigate, useParams } from '@tanstack/react-router';
import { Choices } from '../../parts/controls';
import { View as Frame } from '../../shell/layout';
import { Missing } from '../missing';
import { Learnings } from './learnings';
import { Lists } from './lists';
import { Notes } from './notes';
import { Templates } from './templates';

const TABS = {
  learnings: { label: 'Learnings', Shown: Learnings },
  notes: { label: 'Notes', Shown: Notes },
  templates: { label: 'Templates', Shown: Templates },
  lists: { label: 'Lists', Shown: Lists },
};
type Tab = keyof typeof TABS;

/** Knowledge: learnings, notes, templates and lists. */
export function View() {
  const { tab: typed = 'learnings' } = useParams({ from: '/inside/knowledge/{-$tab}' });
  const navigate = useNavigate();
  const tab: Tab = typed in TABS ? (typed as Tab) : 'learnings';
  if (!(typed in TABS)) return <Missing />;
  const { Shown } = TABS[tab];
  return (
    <Frame title="Knowledge">
      <div className="page wide stack">
        <Choices<Tab>
          label="Part"
          value={tab}
          choose={(value) => navigate({ to: '/knowledge/{-$tab}', params: { tab: value } })}
          of={(Object.keys(TABS) as Tab[]).map((value) => ({ value, label: TABS[value].label }))}
        />
        <Shown />
      </div>
    </Frame>
  );
}
